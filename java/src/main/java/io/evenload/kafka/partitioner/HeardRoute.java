package io.evenload.kafka.partitioner;

/** A route as it was heard, and until when it counts, by {@link System#nanoTime}. */
final class HeardRoute {
    final RouteAnswer answer;
    final long endsAtNanos;

    HeardRoute(RouteAnswer answer, long measuredAtNanos) {
        this.answer = answer;
        this.endsAtNanos = measuredAtNanos + (long) (answer.expiresS * 1e9);
    }

    boolean isOver(long nowNanos) {
        return nowNanos - endsAtNanos >= 0;
    }
}
