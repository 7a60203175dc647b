package io.evenload.kafka.partitioner;

import static org.junit.jupiter.api.Assertions.assertNotSame;

import java.io.IOException;
import java.io.InputStream;
import java.lang.ref.WeakReference;
import java.util.Map;
import org.apache.kafka.clients.producer.Partitioner;
import org.junit.jupiter.api.Test;

class ClosingTest {
    private static final String TOPIC = "events";

    @Test
    void closedProducersLeaveNoThread() throws Exception {
        EvenloadPartitioner one = used(new EvenloadPartitioner());
        EvenloadPartitioner two = used(new EvenloadPartitioner());
        one.close();
        one.close(); // another's reader isn't closed by that
        two.close();
        while (Thread.getAllStackTraces().keySet().stream().anyMatch(thread -> thread.getName().equals("evenload-routes"))) {
            Thread.sleep(5);
        }
    }

    @Test
    void oneThatWasNeverConfiguredCanBeClosed() {
        new EvenloadPartitioner().close();
    }

    @Test
    void aClosedProducersClassesGo() throws Exception {
        WeakReference<ClassLoader> loader = new WeakReference<>(withLoaderOfItsOwn());
        while (loader.get() != null) { // Java's HTTP client lets go of its threads after a few seconds
            System.gc();
            Thread.sleep(20);
        }
    }

    /** Uses and closes a partitioner whose classes are an application's own, as in a container; who loaded them. */
    private static ClassLoader withLoaderOfItsOwn() throws Exception {
        ClassLoader loader = new OwnLoader();
        Class<?> type = Class.forName(EvenloadPartitioner.class.getName(), true, loader);
        assertNotSame(EvenloadPartitioner.class, type);
        Partitioner partitioner = (Partitioner) type.getDeclaredConstructor().newInstance();
        used(partitioner).close();
        return loader;
    }

    private static <P extends Partitioner> P used(P partitioner) {
        // Nobody answers there.
        partitioner.configure(Map.of("evenload.url", "http://127.0.0.1:1", "evenload.first.route.timeout.ms", 100));
        for (int number = 0; number < 100; number++) {
            partitioner.partition(TOPIC, null, null, null, new byte[1000], Clusters.ofOnePartition(TOPIC));
        }
        return partitioner;
    }

    /** Loads evenload's classes anew, and all others from where they are. */
    private static final class OwnLoader extends ClassLoader {
        OwnLoader() {
            super(ClosingTest.class.getClassLoader());
        }

        @Override
        protected Class<?> loadClass(String name, boolean resolve) throws ClassNotFoundException {
            if (!name.startsWith("io.evenload.")) {
                return super.loadClass(name, resolve);
            }
            synchronized (getClassLoadingLock(name)) {
                Class<?> loaded = findLoadedClass(name);
                return loaded == null ? defined(name) : loaded;
            }
        }

        private Class<?> defined(String name) throws ClassNotFoundException {
            try (InputStream file = getParent().getResourceAsStream(name.replace('.', '/') + ".class")) {
                byte[] bytes = file.readAllBytes();
                return defineClass(name, bytes, 0, bytes.length);
            } catch (IOException error) {
                throw new ClassNotFoundException(name, error);
            }
        }
    }
}
