package io.evenload.kafka.telemetry;

import java.util.concurrent.atomic.AtomicLong;

/** Counts of one broker. */
final class TelemetryCounts implements TelemetryCountsMXBean {
    final AtomicLong forwarded = new AtomicLong();
    final AtomicLong dropped = new AtomicLong();
    final AtomicLong unreadable = new AtomicLong();
    final AtomicLong failed = new AtomicLong();

    @Override
    public long getForwarded() {
        return forwarded.get();
    }

    @Override
    public long getDropped() {
        return dropped.get();
    }

    @Override
    public long getUnreadable() {
        return unreadable.get();
    }

    @Override
    public long getFailed() {
        return failed.get();
    }
}
