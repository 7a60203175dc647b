package io.evenload.kafka.telemetry;

/** A push is not what clients push. */
final class Unreadable extends Exception {
    private static final long serialVersionUID = 1L;

    Unreadable(String reason) {
        super(reason, null, false, false); // there may be many
    }
}
