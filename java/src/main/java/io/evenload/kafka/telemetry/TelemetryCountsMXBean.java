package io.evenload.kafka.telemetry;

/** What became of pushes so far, over JMX: {@code io.evenload.kafka:type=Telemetry}. */
public interface TelemetryCountsMXBean {
    /** Handed to the collector service. */
    long getForwarded();

    /** Dropped in the request thread: the queue was full, or the broker is about to end. */
    long getDropped();

    /** Not what clients push. */
    long getUnreadable();

    /** Lost, as the collector service took too long or refused them; the next push says it anew. */
    long getFailed();
}
