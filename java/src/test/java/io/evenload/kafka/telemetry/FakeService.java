package io.evenload.kafka.telemetry;

import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.io.InputStream;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.util.List;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.zip.GZIPInputStream;

/** A collector service that remembers what it got, and answers with {@link #status}. */
final class FakeService implements AutoCloseable {
    final List<byte[]> bodies = new CopyOnWriteArrayList<>();
    final List<String> tokens = new CopyOnWriteArrayList<>();
    volatile int status = 200;
    private final HttpServer server;

    FakeService() throws IOException {
        server = HttpServer.create(new InetSocketAddress(InetAddress.getLoopbackAddress(), 0), 0);
        server.createContext("/v1/metrics", this::answer);
        server.start();
    }

    String url() {
        return "http://127.0.0.1:" + server.getAddress().getPort();
    }

    @Override
    public void close() {
        server.stop(0);
    }

    private void answer(HttpExchange exchange) throws IOException {
        try (InputStream body = new GZIPInputStream(exchange.getRequestBody())) {
            byte[] unpacked = body.readAllBytes();
            int answered = status;
            if (answered == 200) {
                tokens.add(String.valueOf(exchange.getRequestHeaders().getFirst("Authorization")));
                bodies.add(unpacked);
            }
            exchange.sendResponseHeaders(answered, -1);
        } finally {
            exchange.close();
        }
    }
}
