import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Properties;
import org.apache.flink.api.common.serialization.SimpleStringSchema;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.connector.kafka.sink.KafkaRecordSerializationSchema;
import org.apache.flink.connector.kafka.sink.KafkaSink;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;

/** Writes so many lines to a topic, as records without a key: NumberedLines PRODUCER.PROPERTIES TOPIC LINES. */
public final class NumberedLines {
    private static final String LINE = "%0999d";

    private NumberedLines() {}

    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        settings.load(Files.newBufferedReader(Path.of(arguments[0])));
        // No setPartitioner: Flink would choose each record's partition by it, and the producer's own wouldn't be asked.
        KafkaRecordSerializationSchema<String> records = KafkaRecordSerializationSchema.<String>builder()
                .setTopic(arguments[1])
                .setValueSerializationSchema(new SimpleStringSchema())
                .build();
        KafkaSink<String> sink = KafkaSink.<String>builder()
                .setKafkaProducerConfig(settings)
                .setBootstrapServers(settings.getProperty("bootstrap.servers"))
                .setRecordSerializer(records)
                .setDeliveryGuarantee(DeliveryGuarantee.AT_LEAST_ONCE)
                .build();
        StreamExecutionEnvironment flink = StreamExecutionEnvironment.getExecutionEnvironment().setParallelism(1);
        flink.fromSequence(1, Long.parseLong(arguments[2]))
                .map(number -> String.format(LINE, number))
                .returns(Types.STRING)
                .sinkTo(sink);
        flink.execute("numbered lines");
    }
}
