package io.evenload.kafka.client;

/** A service has answered, with nothing that can be used: it is there, and may answer about others. */
public final class RefusedException extends UnusableException {
    private static final long serialVersionUID = 1L;

    private static final int BAD_REQUEST = 400;
    private static final int TOO_LARGE = 413;

    private final int status;

    public RefusedException(String reason) {
        this(reason, 0);
    }

    /** With the status of the answer. */
    public RefusedException(String reason, int status) {
        super(reason);
        this.status = status;
    }

    /** Whether it is about who asks, or the service's own state, and not about what was sent. */
    public boolean isOfSender() {
        return status != BAD_REQUEST && status != TOO_LARGE;
    }
}
