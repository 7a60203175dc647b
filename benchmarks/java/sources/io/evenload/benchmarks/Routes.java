package io.evenload.benchmarks;

import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.Random;
import java.util.StringJoiner;

/** A collector service that has one route for everything, whoever asks, and takes whatever it is told. */
final class Routes implements AutoCloseable {
    private final HttpServer server;
    private final int numPartitions;

    Routes(int numPartitions) throws IOException {
        this.numPartitions = numPartitions;
        server = HttpServer.create(new InetSocketAddress(InetAddress.getLoopbackAddress(), 0), 0);
        server.createContext("/", this::answer);
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
        exchange.getRequestBody().readAllBytes();
        String path = exchange.getRequestURI().getPath();
        if (path.startsWith("/v1/routes/")) {
            byte[] body = route(path.substring("/v1/routes/".length())).getBytes(StandardCharsets.UTF_8);
            exchange.getResponseHeaders().set("Evenload-Age", "0.1");
            exchange.sendResponseHeaders(200, body.length);
            exchange.getResponseBody().write(body);
        } else {
            exchange.sendResponseHeaders(200, -1);
        }
        exchange.close();
    }

    private String route(String topic) {
        StringJoiner shares = new StringJoiner(",");
        Random random = new Random(0);
        for (int partition = 0; partition < numPartitions; partition++) {
            shares.add(String.valueOf(0.5 + random.nextDouble()));
        }
        return "{\"schema_version\":1,\"cluster_id\":\"\",\"topic\":\"" + topic + "\",\"version\":1,\"shares\":[" + shares
                + "],\"expires_s\":300,\"turn_max_bytes\":4194304,\"poll_s\":1,\"report_bytes\":1000000000,"
                + "\"reason\":null,\"notes\":[]}";
    }
}
