package io.evenload.kafka.partitioner;

import java.util.Arrays;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicLongArray;

/**
 * Says for each record which partition is next, so that bytes follow the shares: router/route.py in Java.
 *
 * <p>Partitions take turns of about a batch. Within a turn, a call takes the record's size off what is left of it. When
 * it ends, the bytes really sent are booked, and of the partitions that are not ahead of their share, the one whose next
 * turn is due first has it. With one caller this is the same as Python's, bit for bit
 * (tests/vectors/turn_routes.json, which both run); that module has the reasons and the bounds.
 *
 * <p>Threads: any may call anything; nobody waits. Whoever takes the token ends a turn; what others send until then
 * follows the shares by a simpler rule, and is booked afterwards.
 */
final class TurnRoute {
    private static final double GOLDEN = (Math.sqrt(5.0) - 1.0) / 2.0;
    private static final double AHEAD_MAX_BATCHES = 2.0;
    private static final double SELDOM = 1.25;
    private static final int NOBODY = -1;

    /** No partition: the turn is over. */
    static final int NONE = -1;

    private final int[] partitions;
    private final double[] shares;
    private final double[] cumulative;
    private final long batchBytes;
    private final AtomicBoolean isEnding = new AtomicBoolean();
    private final AtomicLong meanwhileBytes = new AtomicLong();
    private final AtomicLongArray unbookedBytes;

    /** A bit for each place that may have some: few of thousands do. */
    private final AtomicLongArray unbookedPlaces;

    private final SentBytes sent;
    private volatile boolean hasUnbooked;
    private volatile Turn turn;
    private volatile TurnRoute successor;

    // Whoever holds the token changes these.
    private final double[] sentBytes;
    private final DueHeap waiting;
    private final DueHeap ready;
    private double totalBytes;
    private double longestBytes;

    /**
     * Makes a route.
     *
     * @param byPartition the part of the bytes that each partition gets, by its number: finite, at least 0, not all 0.
     *     They are divided by their sum.
     * @param batchBytes about how many bytes go to one partition before the next one's turn; at least 1.
     * @param sent where bytes are booked that went to a partition, once their turn is over.
     */
    TurnRoute(double[] byPartition, long batchBytes, SentBytes sent) {
        double total = exactSum(byPartition);
        if (!(total > 0 && total < Double.POSITIVE_INFINITY) || batchBytes < 1) {
            throw new IllegalArgumentException("shares sum to " + total + ", a batch has " + batchBytes + " bytes");
        }
        int count = 0;
        for (double share : byPartition) {
            if (!(share >= 0)) {
                throw new IllegalArgumentException("a share is " + share);
            }
            count += share / total > 0 ? 1 : 0;
        }
        this.batchBytes = batchBytes;
        this.sent = sent;
        partitions = new int[count];
        shares = new double[count];
        cumulative = new double[count];
        double sum = 0.0;
        int place = 0;
        for (int partition = 0; partition < byPartition.length; partition++) {
            if (byPartition[partition] / total > 0) {
                partitions[place] = partition;
                shares[place] = byPartition[partition] / total;
                sum += shares[place];
                cumulative[place++] = sum;
            }
        }
        sentBytes = new double[count];
        unbookedBytes = new AtomicLongArray(count);
        unbookedPlaces = new AtomicLongArray((count + Long.SIZE - 1) / Long.SIZE);
        waiting = new DueHeap(count);
        ready = new DueHeap(count);
        // A turn ends with the record that fills it: for records up to a batch, before two.
        longestBytes = 2.0 * batchBytes;
        begin();
    }

    /** Begins so many turns later: producers that start together would all send their first batches to one place. */
    void skipTurns(int numTurns) {
        for (int number = 0; number < numTurns; number++) {
            turn = endTurn(turn);
            turn.set(0);
        }
        System.arraycopy(aheadBytes(turn), 0, sentBytes, 0, sentBytes.length);
        begin();
    }

    /**
     * Goes on where another route stands, which ends its turn by that: partitions that were ahead wait.
     *
     * <p>Who still asks the other one is answered by this one from then on.
     *
     * @return whether it does; not while another thread is ending a turn of the other.
     */
    boolean takeOver(TurnRoute previous) {
        if (!previous.isEnding.compareAndSet(false, true)) {
            return false;
        }
        try {
            Turn last = previous.turn.ended();
            previous.tell(last);
            if (last.place != NOBODY || !allZero(previous.sentBytes)) {
                goOnFrom(previous, last);
            }
            previous.successor = this;
            return true;
        } finally {
            previous.isEnding.set(false);
        }
    }

    private void goOnFrom(TurnRoute previous, Turn last) {
        double[] ahead = previous.aheadBytes(last);
        // More than that was a giant record, which whoever decides the shares has counted already.
        double limit = AHEAD_MAX_BATCHES * batchBytes;
        int at = 0;
        for (int place = 0; place < partitions.length; place++) {
            while (at < ahead.length && previous.partitions[at] < partitions[place]) {
                at++;
            }
            boolean isThere = at < ahead.length && previous.partitions[at] == partitions[place];
            sentBytes[place] = isThere ? Math.min(Math.max(ahead[at], -limit), limit) : 0.0;
        }
        begin();
    }

    /** Where a record of so many bytes (0 or more) goes. */
    int partitionFor(long sizeBytes) {
        int partition = withinTurn(sizeBytes);
        if (partition != NONE) {
            return partition;
        }
        if (successor != null) {
            return successor.partitionFor(sizeBytes);
        }
        if (!isEnding.compareAndSet(false, true)) {
            return meanwhile(sizeBytes);
        }
        try {
            Turn ended = turn;
            if (ended.take(sizeBytes)) { // another thread has begun it a moment ago
                return ended.partition;
            }
            if (successor == null) {
                tell(ended);
                Turn next = endTurn(ended);
                next.set(batchBytes - sizeBytes);
                turn = next;
                return next.partition;
            }
        } finally {
            isEnding.set(false);
        }
        return successor.partitionFor(sizeBytes);
    }

    /** Where it goes if the turn under way isn't over, else {@link #NONE}. */
    int withinTurn(long sizeBytes) {
        Turn now = turn;
        return now.take(sizeBytes) ? now.partition : NONE;
    }

    /** Of what went to a partition, this did not go there after all; its next turn comes sooner. */
    void giveBack(int partition, long sizeBytes) {
        if (successor != null) {
            successor.giveBack(partition, sizeBytes);
            return;
        }
        int place = Arrays.binarySearch(partitions, partition);
        if (place >= 0) {
            putAside(place, -sizeBytes);
        }
    }

    /** What went to the turn under way so far, which isn't told yet. */
    long underWayBytes() {
        Turn now = turn;
        return now.bytes - now.get();
    }

    private void begin() {
        totalBytes = exactSum(sentBytes);
        ready.clear();
        waiting.clear();
        for (int place = 0; place < shares.length; place++) {
            waiting.push(sentBytes[place] / shares[place], place);
        }
        turn = new Turn(NOBODY, partitions[0], 0);
    }

    /** Books a turn and makes the next. */
    private Turn endTurn(Turn ended) {
        int place = ended.place;
        if (place != NOBODY) {
            double spentBytes = ended.bytes - ended.get();
            totalBytes += spentBytes;
            sentBytes[place] += spentBytes;
            if (hasUnbooked) {
                bookTheUnbooked();
            }
            waiting.push(sentBytes[place] / shares[place], place);
            if (spentBytes > longestBytes) {
                expectTurnsOf(spentBytes);
            }
        }
        while (!waiting.isEmpty() && waiting.firstKey() <= totalBytes) {
            double evenAt = waiting.firstKey();
            place = waiting.pop();
            ready.push(evenAt + longestBytes / shares[place], place);
        }
        // Owed and owing bytes sum to 0, so somebody is ready, but for rounding.
        place = ready.isEmpty() ? waiting.pop() : ready.pop();
        return new Turn(place, partitions[place], batchBytes);
    }

    private void tell(Turn ended) {
        if (ended.place != NOBODY) {
            sent.add(ended.partition, ended.bytes - ended.get());
        }
    }

    private void bookTheUnbooked() {
        hasUnbooked = false; // before they are looked at: what comes meanwhile sets it again
        for (int word = 0; word < unbookedPlaces.length(); word++) {
            long places = unbookedPlaces.get(word) == 0 ? 0 : unbookedPlaces.getAndSet(word, 0);
            for (; places != 0; places &= places - 1) {
                int place = word * Long.SIZE + Long.numberOfTrailingZeros(places);
                long bytes = unbookedBytes.getAndSet(place, 0);
                sentBytes[place] += bytes;
                totalBytes += bytes;
            }
        }
    }

    /** Batches are laid on the unit interval, cut up by the shares, in steps of the golden ratio. */
    private int meanwhile(long sizeBytes) {
        long bytes = meanwhileBytes.addAndGet(sizeBytes);
        double steps = (double) (bytes / batchBytes) * GOLDEN;
        double point = steps - Math.floor(steps); // exactly what % gives, in a tenth of the time
        int place = Math.min(countUpTo(point), partitions.length - 1);
        putAside(place, sizeBytes);
        return partitions[place];
    }

    private int countUpTo(double point) {
        int low = 0;
        int high = cumulative.length;
        while (low < high) {
            int middle = (low + high) >>> 1;
            if (point < cumulative[middle]) {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        return low;
    }

    private void putAside(int place, long sizeBytes) {
        unbookedBytes.addAndGet(place, sizeBytes);
        int word = place / Long.SIZE;
        long bit = 1L << place;
        long places = unbookedPlaces.get(word);
        // After the bytes: whoever takes the bit away takes them, too.
        while ((places & bit) == 0 && !unbookedPlaces.compareAndSet(word, places, places | bit)) {
            places = unbookedPlaces.get(word);
        }
        hasUnbooked = true;
        sent.add(partitions[place], sizeBytes);
    }

    /** Reckons when turns are due anew, as a record was far larger than a batch. */
    private void expectTurnsOf(double sizeBytes) {
        longestBytes = sizeBytes * SELDOM;
        int[] places = ready.places();
        ready.clear();
        for (int place : places) {
            ready.push((sentBytes[place] + longestBytes) / shares[place], place);
        }
    }

    /** By how many bytes each place is ahead of its share, the turn under way included. */
    private double[] aheadBytes(Turn now) {
        double[] ahead = sentBytes.clone();
        if (now.place != NOBODY) {
            ahead[now.place] += now.bytes - (double) now.get();
        }
        double total = exactSum(ahead);
        for (int place = 0; place < ahead.length; place++) {
            ahead[place] -= shares[place] * total;
        }
        return ahead;
    }

    private static boolean allZero(double[] numbers) {
        for (double number : numbers) {
            if (number != 0) {
                return false;
            }
        }
        return true;
    }

    /** Rounded once, as Python's fsum: by partial sums that don't overlap (Shewchuk, 1997). */
    private static double exactSum(double[] numbers) {
        double[] partials = new double[8];
        int count = 0;
        for (double number : numbers) {
            if (!Double.isFinite(number)) {
                return number;
            }
            double sum = number;
            int kept = 0;
            for (int at = 0; at < count; at++) {
                double large = Math.abs(sum) < Math.abs(partials[at]) ? partials[at] : sum;
                double small = Math.abs(sum) < Math.abs(partials[at]) ? sum : partials[at];
                sum = large + small;
                double lost = small - (sum - large);
                if (lost != 0) {
                    partials[kept++] = lost;
                }
            }
            if (kept == partials.length) {
                partials = Arrays.copyOf(partials, 2 * kept);
            }
            partials[kept] = sum;
            count = kept + 1;
        }
        return count == 0 ? 0.0 : roundedSum(partials, count);
    }

    /** Of partial sums that don't overlap, the smallest first; halves to even. */
    private static double roundedSum(double[] partials, int count) {
        int at = count - 1;
        double sum = partials[at];
        double lost = 0;
        while (at > 0 && lost == 0) {
            double before = sum;
            sum = before + partials[--at];
            lost = partials[at] - (sum - before);
        }
        // What is further down decides a half.
        if (at > 0 && (lost < 0 && partials[at - 1] < 0 || lost > 0 && partials[at - 1] > 0)) {
            double twice = 2 * lost;
            double other = sum + twice;
            if (other - sum == twice) {
                sum = other;
            }
        }
        return sum;
    }

    /** What is left of a turn, in bytes; at most 0 once it is over. */
    private static final class Turn extends AtomicLong {
        private static final long serialVersionUID = 1L;

        final int place;
        final int partition;
        final long bytes;

        Turn(int place, int partition, long bytes) {
            super(bytes);
            this.place = place;
            this.partition = partition;
            this.bytes = bytes;
        }

        boolean take(long sizeBytes) {
            long left = get();
            while (left > 0) {
                if (compareAndSet(left, left - sizeBytes)) {
                    return true;
                }
                left = get();
            }
            return false;
        }

        /** The same turn, of which nobody takes any more from now on. */
        Turn ended() {
            long left = get();
            while (left > 0 && !compareAndSet(left, 0)) {
                left = get();
            }
            Turn ended = new Turn(place, partition, bytes);
            ended.set(left);
            return ended;
        }
    }

    /** Places by when they are due, ties by place: all keys differ, so what comes out doesn't depend on the heap. */
    private static final class DueHeap {
        private final double[] keys;
        private final int[] places;
        private int size;

        DueHeap(int capacity) {
            keys = new double[capacity];
            places = new int[capacity];
        }

        boolean isEmpty() {
            return size == 0;
        }

        double firstKey() {
            return keys[0];
        }

        int[] places() {
            return Arrays.copyOf(places, size);
        }

        void clear() {
            size = 0;
        }

        void push(double key, int place) {
            int at = size++;
            while (at > 0 && isBefore(key, place, (at - 1) >>> 1)) {
                move((at - 1) >>> 1, at);
                at = (at - 1) >>> 1;
            }
            keys[at] = key;
            places[at] = place;
        }

        int pop() {
            int first = places[0];
            double key = keys[--size];
            int place = places[size];
            int at = 0;
            for (int child = 1; child < size; child = 2 * at + 1) {
                if (child + 1 < size && isBefore(keys[child + 1], places[child + 1], child)) {
                    child++;
                }
                if (isBefore(key, place, child)) {
                    break;
                }
                move(child, at);
                at = child;
            }
            keys[at] = key;
            places[at] = place;
            return first;
        }

        private boolean isBefore(double key, int place, int at) {
            return key < keys[at] || key == keys[at] && place < places[at];
        }

        private void move(int from, int to) {
            keys[to] = keys[from];
            places[to] = places[from];
        }
    }
}
