# Kafka with evenload's telemetry plugin in its class path: docker build -f deploy/docker/broker.Dockerfile .
FROM maven:3.9.9-eclipse-temurin-17 AS jar
COPY java /java
RUN mvn --quiet --batch-mode --file /java/pom.xml package -DskipTests

# Its user is `appuser`, not root.
FROM apache/kafka:4.3.1
COPY --from=jar /java/target/evenload-kafka-*.jar /opt/kafka/libs/
