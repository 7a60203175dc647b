package io.evenload.kafka.partitioner;

import io.evenload.kafka.client.RefusedException;
import io.evenload.kafka.client.UnusableException;
import java.net.URI;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Keeps the routes of all topics fresh that this JVM's producers write, in one thread for all who ask the same services.
 *
 * <p>A topic that got records is asked for each second or as the service says, others now and then. Of several services,
 * all are told what was sent, and one is asked until it fails. The thread ends with the last producer.
 */
final class RouteReader {
    private static final Logger LOG = LoggerFactory.getLogger(EvenloadPartitioner.class);
    private static final Map<List<Object>, RouteReader> READERS = new HashMap<>();

    /** Host and process, as far as that is known without asking anybody. */
    static final String PROCESS = process();

    private static final long SECOND = 1_000_000_000L;
    private static final long LOOK_EACH_NANOS = SECOND;
    private static final long ASK_MIN_NANOS = SECOND / 5; // whatever a service says
    private static final double JITTER = 0.2;
    private static final long BACKOFF_MAX_NANOS = 8 * SECOND;
    private static final long REPORT_EACH_NANOS = 5 * SECOND;
    private static final long REPORT_MIN_NANOS = SECOND;
    private static final long REPORT_MAX_CHARS = 256 << 10;
    // A topic that isn't written at the moment is asked for so much less often, and after so long no more.
    private static final int IDLE_FACTOR = 10;
    private static final long IDLE_NANOS = 600 * SECOND;
    private static final long DEAD_NANOS = 30 * SECOND;
    // One answer that is late tells nothing.
    private static final int MISSES = 2;
    private static final long TIMEOUT_MS = 2000;
    // A topic that a service hasn't heard of is measured first.
    private static final long FIRST_TIMEOUT_MS = 4000;

    private final List<Object> key;
    private final Settings settings;
    private final List<Service> services = new ArrayList<>();
    private final Map<String, Topic> topics = new ConcurrentHashMap<>();
    private final ExecutorService executor;
    private final Thread thread;
    private volatile long deadAtNanos;
    private volatile boolean isDead;
    private volatile boolean isClosed;
    private boolean isPoked;
    private boolean hasSaidWrong;
    private int numUsers;

    private RouteReader(Settings settings) {
        this.settings = settings;
        key = settings.readerKey();
        for (URI url : settings.urls) {
            services.add(new Service(url));
        }
        executor = Executors.newCachedThreadPool(task -> daemon(task, "evenload-routes-http"));
        thread = daemon(this::run, "evenload-routes");
    }

    /** The reader of all producers that have these services and tokens; to be closed by each. */
    static RouteReader open(Settings settings) {
        synchronized (READERS) {
            RouteReader reader = READERS.get(settings.readerKey());
            if (reader == null) {
                reader = new RouteReader(settings);
                reader.thread.start();
                READERS.put(reader.key, reader);
            }
            reader.numUsers++;
            return reader;
        }
    }

    void close() {
        synchronized (READERS) {
            if (--numUsers > 0) {
                return;
            }
            READERS.remove(key, this);
        }
        isClosed = true;
        thread.interrupt();
    }

    /** Ask for a topic from now on while it is written, and tell what is sent. */
    void follow(TopicTurns writer) {
        topics.compute(writer.topic, (name, known) -> {
            Topic topic = known == null ? new Topic(name) : known;
            topic.writers.add(writer);
            return topic;
        });
        synchronized (this) {
            isPoked = true;
            notifyAll();
        }
    }

    /** Its producer is closed. */
    void forget(TopicTurns writer) {
        topics.computeIfPresent(writer.topic, (name, topic) -> {
            topic.writers.remove(writer);
            return topic.writers.isEmpty() ? null : topic;
        });
    }

    /** What was heard of a topic last, however old; null: nothing yet. */
    HeardRoute heard(String topic) {
        Topic known = topics.get(topic);
        return known == null ? null : known.heard;
    }

    /** Waits for a topic's first answer, unless services have been dead lately. */
    void awaitFirst(String topic, long timeoutMs) {
        Topic known = topics.get(topic);
        if (known == null || isDead && System.nanoTime() - deadAtNanos < DEAD_NANOS) {
            return;
        }
        try {
            known.isKnown.await(timeoutMs, TimeUnit.MILLISECONDS);
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
        }
    }

    private static String process() {
        String host = System.getenv("HOSTNAME");
        String name = (host == null ? "" : host) + "/" + ProcessHandle.current().pid();
        return name.replaceAll("[^!-~]", "?");
    }

    private static Thread daemon(Runnable task, String name) {
        Thread thread = new Thread(task, name);
        thread.setDaemon(true);
        thread.setContextClassLoader(null); // or it would keep an application's classes from being unloaded
        return thread;
    }

    private void run() {
        try {
            while (!isClosed) {
                rest(lookUnlessWrong());
            }
        } catch (InterruptedException error) {
            LOG.debug("the last producer is closed");
        } finally {
            executor.shutdown();
        }
    }

    private synchronized void rest(long nanos) throws InterruptedException {
        if (!isPoked) {
            TimeUnit.NANOSECONDS.timedWait(this, Math.max(1, nanos));
        }
        isPoked = false;
    }

    /** As {@link #look}; whatever is wrong there, the thread goes on: nobody else would ever ask again. */
    private long lookUnlessWrong() throws InterruptedException {
        try {
            return look();
        } catch (InterruptedException error) {
            throw error;
        } catch (Throwable error) {
            if (!hasSaidWrong && !isClosed) {
                hasSaidWrong = true;
                LOG.error("asking for routes failed unexpectedly; it is tried again", error);
            }
            return BACKOFF_MAX_NANOS;
        }
    }

    /** Asks for what is due; in how many ns to come again. */
    private long look() throws InterruptedException {
        long nowNanos = System.nanoTime();
        long waitNanos = LOOK_EACH_NANOS;
        for (Topic topic : topics.values()) {
            if (topic.isWritten()) {
                topic.writtenAtNanos = nowNanos;
            }
            if (nowNanos - topic.askAtNanos >= idleNanos(topic, nowNanos)) {
                ask(topic);
            }
            long leftNanos = topic.askAtNanos - nowNanos;
            if (leftNanos > 0) {
                waitNanos = Math.min(waitNanos, leftNanos);
            }
        }
        for (Service service : services) {
            service.retain(topics);
        }
        report();
        return waitNanos;
    }

    /** How much later a topic is asked for, as it isn't written at the moment. */
    private static long idleNanos(Topic topic, long nowNanos) {
        HeardRoute heard = topic.heard;
        if (heard == null || topic.isDue || topic.writtenAtNanos == nowNanos) {
            return 0;
        }
        if (nowNanos - topic.writtenAtNanos > IDLE_NANOS) {
            return Long.MAX_VALUE;
        }
        return (long) (Math.min(IDLE_FACTOR * heard.answer.pollS, heard.answer.expiresS / 3) * SECOND);
    }

    private void ask(Topic topic) throws InterruptedException {
        RefusedException refused = null;
        URI refusing = null;
        for (Service service : new ArrayList<>(services)) {
            if (service.retryAtNanos - System.nanoTime() > 0) {
                continue;
            }
            try {
                HeardRoute heard = service.client().ask(topic.name, topic.heard == null ? FIRST_TIMEOUT_MS : TIMEOUT_MS);
                check(topic, heard.answer);
                topic.heard = heard;
                topic.isDue = false;
                service.hit();
                services.remove(service);
                services.add(0, service);
                comeBack(service, topic);
                double jitter = ThreadLocalRandom.current().nextDouble(1 - JITTER, 1 + JITTER);
                long pollNanos = (long) (topic.heard.answer.pollS * SECOND);
                topic.askAtNanos = System.nanoTime() + (long) (Math.max(ASK_MIN_NANOS, pollNanos) * jitter);
                topic.isKnown.countDown();
                return;
            } catch (RefusedException error) {
                service.hit();
                refused = error;
                refusing = service.url;
            } catch (UnusableException error) {
                service.miss();
                service.forget(topic.name);
                goWithout(service, error);
            }
        }
        topic.isDue = true; // until it has a route again, whether or not anything is sent
        topic.askAtNanos = soonestRetryNanos();
        if (refused != null) {
            topic.askAtNanos = System.nanoTime() + backoffNanos(++topic.numRefusals);
            if (topic.numRefusals == MISSES) {
                LOG.warn(
                        "the collector service at {} has no route for topic {}: {}; shares are followed until they"
                                + " expire, and are even then",
                        refusing,
                        topic.name,
                        refused.getMessage());
            }
        }
        if (isDead || topic.numRefusals >= MISSES) {
            topic.isKnown.countDown();
        }
    }

    /** Whether a route is about the cluster that the producers write to, as far as both are known. */
    private static void check(Topic topic, RouteAnswer answer) throws UnusableException {
        for (TopicTurns writer : topic.writers) {
            if (TopicTurns.isOfAnother(answer.clusterId, writer.clusterId)) {
                throw new UnusableException("it measures cluster " + answer.clusterId
                        + ", but the producer writes to cluster " + writer.clusterId + "; correct " + Settings.URL);
            }
        }
    }

    private long soonestRetryNanos() {
        long soonest = services.get(0).retryAtNanos;
        for (Service service : services) {
            soonest = service.retryAtNanos - soonest < 0 ? service.retryAtNanos : soonest;
        }
        return soonest;
    }

    private void goWithout(Service missing, UnusableException error) {
        for (Service service : services) {
            if (service.numMisses < MISSES) {
                return;
            }
        }
        boolean isNew = !isDead;
        deadAtNanos = System.nanoTime();
        isDead = true;
        if (isNew) {
            LOG.warn(
                    "the collector service at {} can't be used: {}; shares are followed until they expire, and are even"
                            + " then",
                    missing.url,
                    error.getMessage());
        }
    }

    private void comeBack(Service service, Topic topic) {
        if (isDead) {
            isDead = false;
            LOG.warn("the collector service at {} can be used again", service.url);
        }
        if (topic.numRefusals >= MISSES) {
            LOG.warn("the collector service at {} has a route for topic {} again", service.url, topic.name);
        }
        topic.numRefusals = 0;
    }

    /** Tells all services what was sent: each 5 s, and sooner if it is much. */
    private void report() throws InterruptedException {
        long nowNanos = System.nanoTime();
        List<String> bodies = new ArrayList<>();
        StringBuilder body = new StringBuilder();
        for (Topic topic : topics.values()) {
            HeardRoute heard = topic.heard;
            for (TopicTurns writer : topic.writers) {
                if (heard == null || !isDue(writer, heard.answer.reportBytes, nowNanos)) {
                    continue;
                }
                writer.reportedBytes = writer.toldBytes();
                writer.reportedAtNanos = nowNanos;
                body.append(body.length() == 0 ? "[" : ",").append(writer.report());
                if (body.length() > REPORT_MAX_CHARS) {
                    bodies.add(body.append(']').toString());
                    body.setLength(0);
                }
            }
        }
        if (body.length() > 0) {
            bodies.add(body.append(']').toString());
        }
        for (Service service : bodies.isEmpty() ? new ArrayList<Service>() : services) {
            if (service.retryAtNanos - nowNanos <= 0 && service.tellAtNanos - nowNanos <= 0) {
                service.tell(bodies);
            }
        }
    }

    private static boolean isDue(TopicTurns writer, long reportBytes, long nowNanos) {
        long unsaidBytes = writer.toldBytes() - writer.reportedBytes;
        long passedNanos = nowNanos - writer.reportedAtNanos;
        boolean isMuch = unsaidBytes >= reportBytes && passedNanos >= REPORT_MIN_NANOS;
        return writer.toldBytes() > 0 && (isMuch || passedNanos >= REPORT_EACH_NANOS);
    }

    private static long backoffNanos(int numFailures) {
        long most = Math.min(BACKOFF_MAX_NANOS, SECOND << Math.min(numFailures - 1, 10));
        return ThreadLocalRandom.current().nextLong(most / 2, most);
    }

    private static final class Topic {
        final String name;
        final List<TopicTurns> writers = new CopyOnWriteArrayList<>();
        final CountDownLatch isKnown = new CountDownLatch(1);
        volatile HeardRoute heard;

        // The reader's own.
        long askAtNanos = System.nanoTime();
        long writtenAtNanos = askAtNanos;
        int numRefusals;
        boolean isDue = true;

        Topic(String name) {
            this.name = name;
        }

        boolean isWritten() {
            boolean isWritten = false;
            for (TopicTurns writer : writers) {
                long sentBytes = writer.sentBytes();
                isWritten |= sentBytes != writer.seenBytes;
                writer.seenBytes = sentBytes;
            }
            return isWritten;
        }
    }

    /** One service, and how it has answered lately. */
    private final class Service {
        final URI url;
        long retryAtNanos = System.nanoTime();
        long tellAtNanos = retryAtNanos;
        int numMisses; // in a row
        private boolean isUntold;
        private RouteClient client;

        Service(URI url) {
            this.url = url;
        }

        RouteClient client() throws UnusableException {
            if (client == null) {
                client = new RouteClient(url, settings, "java/" + PROCESS, executor);
            }
            return client;
        }

        void forget(String topic) {
            if (client != null) {
                client.forget(topic);
            }
        }

        void retain(Map<String, Topic> written) {
            if (client != null) {
                client.retain(written.keySet());
            }
        }

        void hit() {
            numMisses = 0;
            retryAtNanos = System.nanoTime();
        }

        void miss() {
            retryAtNanos = System.nanoTime() + backoffNanos(++numMisses);
        }

        void tell(List<String> bodies) throws InterruptedException {
            try {
                for (String body : bodies) {
                    client().report(body);
                }
                isUntold = false;
            } catch (UnusableException error) { // it may answer all the same: to who may only read, say
                tellAtNanos = System.nanoTime() + BACKOFF_MAX_NANOS;
                if (!isUntold) {
                    LOG.warn("the collector service at {} isn't told: {}", url, error.getMessage());
                }
                isUntold = true;
            }
        }
    }
}
