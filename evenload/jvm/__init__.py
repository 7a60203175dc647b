"""evenload for the JVM: a jar that Java producers load (java/), built on machines that have no JDK."""
