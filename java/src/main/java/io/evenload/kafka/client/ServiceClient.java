package io.evenload.kafka.client;

import java.io.ByteArrayOutputStream;
import java.io.EOFException;
import java.io.IOException;
import java.io.InputStream;
import java.net.ConnectException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.net.http.HttpTimeoutException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.security.GeneralSecurityException;
import java.security.KeyStore;
import java.security.cert.Certificate;
import java.security.cert.CertificateFactory;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Executor;
import java.util.concurrent.Flow;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import javax.net.ssl.SSLContext;
import javax.net.ssl.SSLException;
import javax.net.ssl.TrustManagerFactory;

/**
 * Speaks HTTP with a collector service; bounded in time and size. For one thread.
 *
 * <p>Whatever the service does (no answer, half an answer, a byte a second), there is an answer or an UnusableException
 * within the time given. Redirects aren't followed: they would carry the token elsewhere.
 */
public final class ServiceClient {
    private static final long CONNECT_TIMEOUT_MS = 2000;
    private static final int ANSWER_MAX_BYTES = 1 << 20;
    private static final int SAID_MAX_BYTES = 300;
    private static final int OK = 200;
    private static final int NO_CONTENT = 204;
    private static final int NOT_MODIFIED = 304;

    private final URI url;
    private final String tokenFile;
    private final HttpClient http;

    /**
     * Makes a client; nothing is asked yet.
     *
     * @param url of the service, without a path of ours.
     * @param tokenFile read anew for each request, as it is replaced while we run; null: no token is shown.
     * @param caFile authorities, PEM; null: those that Java trusts.
     * @param executor runs what Java's client does beside us.
     * @throws UnusableException the authorities can't be read.
     */
    public ServiceClient(URI url, String tokenFile, String caFile, Executor executor) throws UnusableException {
        this.url = url;
        this.tokenFile = tokenFile;
        HttpClient.Builder builder = HttpClient.newBuilder()
                .executor(executor)
                .version(HttpClient.Version.HTTP_1_1)
                .followRedirects(HttpClient.Redirect.NEVER)
                .connectTimeout(Duration.ofMillis(CONNECT_TIMEOUT_MS));
        if (caFile != null) {
            builder.sslContext(trusting(caFile));
        }
        http = builder.build();
    }

    /**
     * The service's URL that a setting names.
     *
     * @throws IllegalArgumentException it is none, or one with what doesn't belong there.
     */
    public static URI url(String text) {
        URI url = URI.create(text.trim());
        boolean isHttp = "http".equals(url.getScheme()) || "https".equals(url.getScheme());
        if (!isHttp || url.getHost() == null || url.getQuery() != null || url.getUserInfo() != null) {
            throw new IllegalArgumentException("a service's URL is like https://collector:9405");
        }
        return url;
    }

    /**
     * A request with the token.
     *
     * @throws UnusableException the token can't be read.
     */
    public HttpRequest.Builder request(String path) throws UnusableException {
        HttpRequest.Builder request = HttpRequest.newBuilder(URI.create(url.toString().replaceAll("/+$", "") + path));
        String token = token();
        return token == null ? request : request.header("Authorization", "Bearer " + token);
    }

    /**
     * What the service answers, with status 200, 204 or 304.
     *
     * @param timeoutMs how long that may take as a whole.
     * @throws RefusedException it answers with another status.
     * @throws UnusableException it doesn't answer in time, or not in HTTP.
     */
    public HttpResponse<byte[]> exchange(HttpRequest.Builder request, long timeoutMs)
            throws UnusableException, InterruptedException {
        // Before Java 16, a cancelled future leaves the exchange going: its head ends by the request's own time-out, and
        // its body by ours.
        BoundedBody body = new BoundedBody();
        CompletableFuture<HttpResponse<byte[]>> coming =
                http.sendAsync(request.timeout(Duration.ofMillis(timeoutMs)).build(), answer -> body);
        HttpResponse<byte[]> response;
        try {
            response = coming.get(timeoutMs, TimeUnit.MILLISECONDS);
        } catch (TimeoutException error) {
            throw new UnusableException("no answer within " + timeoutMs / 1000 + " s");
        } catch (ExecutionException error) {
            throw unusable(error.getCause(), timeoutMs);
        } finally {
            coming.cancel(true);
            body.cancel();
        }
        int status = response.statusCode();
        if (status != OK && status != NO_CONTENT && status != NOT_MODIFIED) {
            throw new RefusedException("it answered with status " + status + said(response.body()), status);
        }
        return response;
    }

    /** What a refusal says, for a log: a sentence of the service's, or some proxy's page. */
    private static String said(byte[] body) {
        String text = new String(body, 0, Math.min(SAID_MAX_BYTES, body.length), StandardCharsets.UTF_8);
        String line = text.replaceAll("\\p{Cntrl}", " ").trim();
        return line.isEmpty() ? "" : ": " + line;
    }

    private String token() throws UnusableException {
        if (tokenFile == null) {
            return null;
        }
        String token;
        try {
            token = Files.readString(Paths.get(tokenFile)).trim();
        } catch (IOException | RuntimeException error) {
            throw new UnusableException("there is no token to show it: " + tokenFile + " can't be read");
        }
        if (token.isEmpty() || !token.chars().allMatch(character -> character > ' ' && character < 127)) {
            throw new UnusableException("there is no token to show it: " + tokenFile + " holds none");
        }
        return token;
    }

    private static UnusableException unusable(Throwable error, long timeoutMs) {
        if (error instanceof UnusableException) {
            return (UnusableException) error;
        }
        if (error instanceof HttpTimeoutException) {
            return new UnusableException("no answer within " + timeoutMs / 1000 + " s");
        }
        if (error instanceof ConnectException) {
            return new UnusableException("it can't be reached");
        }
        if (error instanceof SSLException) {
            return new UnusableException("its certificate isn't trusted, or it speaks no TLS: " + error.getMessage());
        }
        if (error.getCause() instanceof EOFException) {
            return new UnusableException("it ended the connection without an answer");
        }
        String text = error.getMessage() == null ? error.getClass().getSimpleName() : error.getMessage();
        return new UnusableException("its answer can't be read: " + text);
    }

    private static SSLContext trusting(String caFile) throws UnusableException {
        try (InputStream pem = Files.newInputStream(Paths.get(caFile))) {
            KeyStore store = KeyStore.getInstance(KeyStore.getDefaultType());
            store.load(null, null);
            for (Certificate certificate : CertificateFactory.getInstance("X.509").generateCertificates(pem)) {
                store.setCertificateEntry("authority-" + store.size(), certificate);
            }
            if (store.size() == 0) {
                throw new UnusableException("the authorities in " + caFile + " can't be read: there are none");
            }
            TrustManagerFactory trust = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
            trust.init(store);
            SSLContext context = SSLContext.getInstance("TLS");
            context.init(null, trust.getTrustManagers(), null);
            return context;
        } catch (IOException | GeneralSecurityException | RuntimeException error) {
            throw new UnusableException("the authorities in " + caFile + " can't be read: " + error.getMessage());
        }
    }

    /** A body of at most {@link #ANSWER_MAX_BYTES}. */
    private static final class BoundedBody implements HttpResponse.BodySubscriber<byte[]> {
        private final CompletableFuture<byte[]> whole = new CompletableFuture<>();
        private final ByteArrayOutputStream read = new ByteArrayOutputStream();
        private Flow.Subscription subscription;
        private boolean isCancelled;

        /** Nobody wants it any more. */
        synchronized void cancel() {
            isCancelled = true;
            if (subscription != null) {
                subscription.cancel();
            }
        }

        @Override
        public CompletionStage<byte[]> getBody() {
            return whole;
        }

        @Override
        public synchronized void onSubscribe(Flow.Subscription coming) {
            subscription = coming;
            if (isCancelled) {
                coming.cancel();
            } else {
                coming.request(Long.MAX_VALUE);
            }
        }

        @Override
        public void onNext(List<ByteBuffer> buffers) {
            for (ByteBuffer buffer : buffers) {
                if (read.size() + buffer.remaining() > ANSWER_MAX_BYTES) {
                    cancel();
                    whole.completeExceptionally(
                            new RefusedException("its answer is larger than " + ANSWER_MAX_BYTES + " bytes"));
                    return;
                }
                byte[] bytes = new byte[buffer.remaining()];
                buffer.get(bytes);
                read.write(bytes, 0, bytes.length);
            }
        }

        @Override
        public void onError(Throwable error) {
            whole.completeExceptionally(error);
        }

        @Override
        public void onComplete() {
            whole.complete(read.toByteArray());
        }
    }
}
