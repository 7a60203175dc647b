package io.evenload.kafka.partitioner;

import io.evenload.kafka.client.RefusedException;
import io.evenload.kafka.client.ServiceClient;
import io.evenload.kafka.client.UnusableException;
import java.net.URI;
import java.net.URLEncoder;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.Executor;

/** Asks one service for routes, and tells it what was sent. For one thread. */
final class RouteClient {
    private static final long REPORT_TIMEOUT_MS = 2000;
    private static final double AGE_MAX_S = 3600;
    private static final int NOT_MODIFIED = 304;

    private final String name;
    private final ServiceClient service;
    private final Map<String, Tagged> tagged = new HashMap<>();

    RouteClient(URI url, Settings settings, String name, Executor executor) throws UnusableException {
        this.name = name;
        service = new ServiceClient(url, settings.tokenFile, settings.caFile, executor);
    }

    /**
     * The topic's route.
     *
     * @throws RefusedException the service has none that can be used.
     * @throws UnusableException it can't be asked.
     */
    HeardRoute ask(String topic, long timeoutMs) throws UnusableException, InterruptedException {
        Tagged known = tagged.get(topic);
        String path = "/v1/routes/" + URLEncoder.encode(topic, StandardCharsets.UTF_8).replace("+", "%20");
        HttpRequest.Builder request = request(path).GET();
        if (known != null) {
            request.header("If-None-Match", known.tag);
        }
        long sentAtNanos = System.nanoTime();
        HttpResponse<byte[]> response = service.exchange(request, timeoutMs);
        RouteAnswer answer;
        double ageS;
        try {
            answer = response.statusCode() == NOT_MODIFIED && known != null
                    ? known.answer
                    : RouteAnswer.of(response.body(), topic);
            ageS = age(response.headers().firstValue("Evenload-Age").orElse(null), answer);
        } catch (UnusableException error) {
            throw new RefusedException(error.getMessage());
        }
        if (ageS >= answer.expiresS) {
            throw new RefusedException("its latest measurement is " + Math.round(ageS) + " s old");
        }
        String tag = response.headers().firstValue("ETag").orElse(null);
        if (tag == null) {
            tagged.remove(topic);
        } else {
            tagged.put(topic, new Tagged(answer, tag));
        }
        return new HeardRoute(answer, sentAtNanos - (long) (ageS * 1e9));
    }

    /** Asks for the whole route next time. */
    void forget(String topic) {
        tagged.remove(topic);
    }

    /** Remembers nothing of other topics. */
    void retain(Set<String> topics) {
        tagged.keySet().retainAll(topics);
    }

    /**
     * Tells what was sent, as a JSON list of reports.
     *
     * @throws UnusableException it wasn't taken.
     */
    void report(String reports) throws UnusableException, InterruptedException {
        HttpRequest.Builder request = request("/v1/reports")
                .header("Content-Type", "application/json")
                .PUT(HttpRequest.BodyPublishers.ofString(reports));
        service.exchange(request, REPORT_TIMEOUT_MS);
    }

    private HttpRequest.Builder request(String path) throws UnusableException {
        return service.request(path).header("Evenload-Client", name);
    }

    private static double age(String said, RouteAnswer answer) throws UnusableException {
        if (said == null && answer.reason != null) {
            return 0; // shares that are only even are of now
        }
        double ageS;
        try {
            ageS = Double.parseDouble(said == null ? "" : said);
        } catch (NumberFormatException error) {
            ageS = Double.NaN;
        }
        if (!(ageS >= 0 && ageS <= AGE_MAX_S)) {
            throw new UnusableException("it doesn't say how old its measurement is");
        }
        return ageS;
    }

    private static final class Tagged {
        final RouteAnswer answer;
        final String tag;

        Tagged(RouteAnswer answer, String tag) {
            this.answer = answer;
            this.tag = tag;
        }
    }
}
