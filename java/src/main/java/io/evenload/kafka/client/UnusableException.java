package io.evenload.kafka.client;

/** Why a service, or what it answered, can't be used; a sentence without its end. */
public class UnusableException extends Exception {
    private static final long serialVersionUID = 1L;

    public UnusableException(String reason) {
        super(reason);
    }
}
