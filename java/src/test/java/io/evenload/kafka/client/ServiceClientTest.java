package io.evenload.kafka.client;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

class ServiceClientTest {
    private static final long TIMEOUT_MS = 1000;
    private static final long LONG_MS = 600_000; // for what has to answer, however busy the machine is

    private ServerSocket listening;
    private ExecutorService executor;
    private volatile String head = "";

    /** What is done with a connection on which a request has come. */
    interface Answer {
        void to(Socket connection) throws Exception;
    }

    @BeforeEach
    void open() throws IOException {
        listening = new ServerSocket(0, 10, InetAddress.getLoopbackAddress());
        executor = Executors.newCachedThreadPool(task -> {
            Thread thread = new Thread(task);
            thread.setDaemon(true);
            return thread;
        });
    }

    @AfterEach
    void close() throws IOException {
        listening.close();
        executor.shutdownNow();
    }

    @Test
    void anAnswerIsRead() throws Exception {
        serve(answering("200 OK", "fine"));
        byte[] body = client().exchange(client().request("/v1/x"), LONG_MS).body();
        assertArrayEquals("fine".getBytes(StandardCharsets.UTF_8), body);
        assertTrue(head.startsWith("GET /v1/x HTTP/1.1\r\n"), head);
        assertFalse(head.contains("Authorization"), head);
    }

    @Test
    void silenceEndsInTime() throws Exception {
        serve(connection -> Thread.sleep(LONG_MS));
        assertEquals("no answer within 1 s", sentence(TIMEOUT_MS));
    }

    @Test
    void aByteNowAndThenEndsInTime() throws Exception {
        serve(connection -> {
            OutputStream out = connection.getOutputStream();
            out.write("HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n".getBytes(StandardCharsets.US_ASCII));
            while (true) {
                out.write('x');
                out.flush();
                Thread.sleep(50);
            }
        });
        assertEquals("no answer within 1 s", sentence(TIMEOUT_MS));
    }

    @Test
    void anAnswerWithoutEndIsLeft() throws Exception {
        serve(connection -> {
            OutputStream out = connection.getOutputStream();
            out.write("HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n".getBytes(StandardCharsets.US_ASCII));
            while (true) {
                out.write(new byte[1 << 16]);
            }
        });
        assertEquals("its answer is larger than 1048576 bytes", sentence(LONG_MS));
    }

    @Test
    void whatARefusalSaysIsQuotedInOneLine() throws Exception {
        serve(answering("400 Bad", "{\"error\":\n\"of\u0007another cluster\"}"));
        assertEquals("it answered with status 400: {\"error\": \"of another cluster\"}", sentence(LONG_MS));
    }

    @Test
    void redirectsArentFollowed() throws Exception {
        serve(connection -> {
            String told = "HTTP/1.1 302 Found\r\nLocation: " + url() + "/elsewhere\r\nContent-Length: 0\r\n\r\n";
            connection.getOutputStream().write(told.getBytes(StandardCharsets.US_ASCII));
        });
        assertEquals("it answered with status 302", sentence(LONG_MS));
        assertFalse(head.contains("/elsewhere"), head);
    }

    @Test
    void whatIsNoHttpIsSaid() throws Exception {
        serve(connection -> connection.getOutputStream().write("220 mail here\r\n".getBytes(StandardCharsets.US_ASCII)));
        assertTrue(sentence(LONG_MS).startsWith("its answer can't be read"));
    }

    @Test
    void whoEndsWithoutAnAnswerIsSaid() throws Exception {
        serve(Socket::close);
        assertEquals("it ended the connection without an answer", sentence(LONG_MS));
    }

    @Test
    void whoIsntThereCantBeReached() throws Exception {
        URI nobody = URI.create(url());
        listening.close();
        ServiceClient client = new ServiceClient(nobody, null, null, executor);
        UnusableException error =
                assertThrows(UnusableException.class, () -> client.exchange(client.request("/"), LONG_MS));
        assertEquals("it can't be reached", error.getMessage());
    }

    @Test
    void aTokenIsReadAnewForEachRequest(@TempDir Path folder) throws Exception {
        Path file = folder.resolve("token");
        ServiceClient client = new ServiceClient(URI.create(url()), file.toString(), null, executor);
        for (String wrong : new String[] {null, "", " \n", "two words", "ümlaut"}) {
            if (wrong != null) {
                Files.writeString(file, wrong);
            }
            UnusableException error = assertThrows(UnusableException.class, () -> client.request("/"));
            assertTrue(error.getMessage().startsWith("there is no token to show it"), error.getMessage());
        }
        Files.writeString(file, "secret\n");
        serve(answering("204 No Content", ""));
        client.exchange(client.request("/"), LONG_MS);
        assertTrue(head.contains("Authorization: Bearer secret\r\n"), head);
    }

    @Test
    void authoritiesThatCantBeReadAreSaid(@TempDir Path folder) throws Exception {
        Path empty = Files.writeString(folder.resolve("empty.pem"), "");
        for (String path : new String[] {empty.toString(), folder.resolve("none.pem").toString()}) {
            UnusableException error = assertThrows(
                    UnusableException.class, () -> new ServiceClient(URI.create(url()), null, path, executor));
            assertTrue(error.getMessage().startsWith("the authorities in " + path), error.getMessage());
        }
    }

    @Test
    void aUrlWithWhatDoesntBelongThereIsRefused() {
        for (String wrong : new String[] {
            "", "collector:9405", "ftp://collector", "http://", "http://name:secret@host", "http://host?a=b", "http://a b"
        }) {
            assertThrows(IllegalArgumentException.class, () -> ServiceClient.url(wrong), wrong);
        }
        assertNull(ServiceClient.url(" https://collector:9405/behind/a/proxy/ ").getQuery());
    }

    private String sentence(long timeoutMs) throws Exception {
        ServiceClient client = client();
        return assertThrows(UnusableException.class, () -> client.exchange(client.request("/"), timeoutMs))
                .getMessage();
    }

    private ServiceClient client() throws UnusableException {
        return new ServiceClient(URI.create(url()), null, null, executor);
    }

    private String url() {
        return "http://127.0.0.1:" + listening.getLocalPort();
    }

    private static Answer answering(String status, String body) {
        byte[] bytes = body.getBytes(StandardCharsets.UTF_8);
        String told = "HTTP/1.1 " + status + "\r\nContent-Length: " + bytes.length + "\r\n\r\n";
        return connection -> {
            connection.getOutputStream().write(told.getBytes(StandardCharsets.US_ASCII));
            connection.getOutputStream().write(bytes);
        };
    }

    private void serve(Answer answer) {
        executor.execute(() -> {
            try {
                while (true) {
                    Socket connection = listening.accept();
                    executor.execute(() -> answer(connection, answer));
                }
            } catch (IOException closed) { // the test is over
                Thread.currentThread().interrupt();
            }
        });
    }

    private void answer(Socket connection, Answer answer) {
        try (connection) {
            InputStream in = connection.getInputStream();
            StringBuilder read = new StringBuilder();
            while (read.indexOf("\r\n\r\n") < 0) {
                int next = in.read();
                if (next < 0) {
                    return;
                }
                read.append((char) next);
            }
            head = read.toString();
            answer.to(connection);
        } catch (Exception gone) { // whoever asked has left
            Thread.currentThread().interrupt();
        }
    }
}
