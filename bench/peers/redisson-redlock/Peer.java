import java.lang.management.ManagementFactory;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;

import com.sun.management.OperatingSystemMXBean;
import io.netty.channel.EventLoopGroup;
import io.netty.channel.MultiThreadIoEventLoopGroup;
import io.netty.channel.nio.NioIoHandler;
import org.redisson.Redisson;
import org.redisson.RedissonRedLock;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/** Redisson's RedLock over all nodes, or its RLock on the first one when PEER_SINGLE is set. */
@SuppressWarnings("deprecation") // RedissonRedLock, in favour of its one-node locks
public class Peer {
    static final int NODE_TIMEOUT_MS = 500, OPEN_MS = 2000, DRAIN_MS = 5000, ERROR_PAUSE_MS = 10, WAIT_MS = 2000;

    /** Buckets grow by 1%, so a percentile is off by 0.5% at most. */
    static class Histogram {
        final int[] counts = new int[2200];

        void add(long nanos) {
            double us = Math.max(nanos / 1e3, 1);
            counts[Math.min(counts.length - 1, (int) Math.round(Math.log(us) / Math.log(1.01)))]++;
        }

        void merge(Histogram other) {
            for (int i = 0; i < counts.length; i++)
                counts[i] += other.counts[i];
        }

        String percentile(double p) {
            double left = Arrays.stream(counts).sum() * p;
            for (int i = 0; i < counts.length; i++) {
                left -= counts[i];
                if (left <= 0 && counts[i] > 0)
                    return String.valueOf(Math.round(Math.pow(1.01, i)));
            }
            return "null";
        }

        String summary() {
            return "{\"p50\":" + percentile(0.5) + ",\"p95\":" + percentile(0.95) + ",\"p99\":" + percentile(0.99) + "}";
        }
    }

    enum Phase { WARMING, MEASURING, ENDING }

    static volatile Phase phase = Phase.WARMING;

    interface Pair {
        void acquire() throws Exception;

        void release() throws Exception;
    }

    static class Client extends Thread {
        final Pair lock;
        final CountDownLatch opened;
        final Histogram pair = new Histogram(), acquire = new Histogram();
        volatile int pairs, errors;
        volatile String firstError;

        Client(Pair lock, CountDownLatch opened) {
            this.lock = lock;
            this.opened = opened;
            setDaemon(true);
        }

        public void run() {
            while (phase != Phase.ENDING) {
                long begun = System.nanoTime();
                try {
                    lock.acquire();
                    long held = System.nanoTime();
                    lock.release();
                    if (phase == Phase.MEASURING) {
                        acquire.add(held - begun);
                        pair.add(System.nanoTime() - begun);
                        pairs++;
                    }
                } catch (Exception error) {
                    if (phase == Phase.MEASURING) {
                        errors++;
                        if (firstError == null)
                            firstError = String.valueOf(error);
                    }
                    pause(ERROR_PAUSE_MS);
                }
                opened.countDown();
            }
        }
    }

    static void pause(double ms) {
        try {
            Thread.sleep((long) ms);
        } catch (InterruptedException ignored) {
        }
    }

    static String quoted(String text) {
        return text == null ? "null" : '"' + text.replaceAll("[\\\\\"\\p{Cntrl}]", " ") + '"';
    }

    /** One loop a core for all five nodes; by default Redisson has 32 for each. */
    static final EventLoopGroup loops =
        new MultiThreadIoEventLoopGroup(Runtime.getRuntime().availableProcessors(), NioIoHandler.newFactory());

    /** Lazy, so that a node that does not answer does not hold up the start. */
    static RedissonClient open(String node, int clients, int ttlMs) {
        Config config = new Config();
        config.setLazyInitialization(true);
        config.setCheckLockSyncedSlaves(false);
        config.setEventLoopGroup(loops);
        config.setLockWatchdogTimeout(ttlMs);
        config.useSingleServer()
            .setAddress("redis://" + node)
            .setConnectionPoolSize(clients + 8)
            .setConnectionMinimumIdleSize(clients)
            .setSubscriptionConnectionPoolSize(clients + 8)
            .setConnectTimeout(NODE_TIMEOUT_MS)
            .setTimeout(NODE_TIMEOUT_MS)
            .setRetryAttempts(0);
        return Redisson.create(config);
    }

    static Pair single(RLock lock, int ttlMs) {
        return new Pair() {
            public void acquire() {
                lock.lock(ttlMs, TimeUnit.MILLISECONDS);
            }

            public void release() {
                lock.unlock();
            }
        };
    }

    /**
     * Acquires with the watchdog's TTL, since a TTL of its own costs a further PEXPIRE
     * on every node (own keys, 16 clients: 780 pairs a second, else 550). Releases all
     * nodes at once: unlock() goes from one to the next. As unlock() does, it does not
     * mind nodes that had not given their vote, or that do not answer.
     *
     * Waits by tryLock() with a limit, again and again: 16 clients on one key make 390
     * pairs a second; lock(), whose limit is longer, 230; tryLock() without waiting and
     * a random pause of at most 100 ms, 330.
     */
    static Pair redlock(RLock... locks) {
        RLock lock = new RedissonRedLock(locks);
        return new Pair() {
            public void acquire() throws InterruptedException {
                while (!lock.tryLock(WAIT_MS, TimeUnit.MILLISECONDS))
                    ;
            }

            public void release() throws InterruptedException {
                try {
                    lock.unlockAsync().get();
                } catch (ExecutionException ignored) {
                }
            }
        };
    }

    static String version() {
        return Redisson.class.getPackage().getImplementationVersion();
    }

    /** The options given, after checking that the needed ones are there. */
    static Map<String, String> options(String[] args) {
        Map<String, String> opts = new HashMap<>(Map.of("--warmup", "1", "--ttl-ms", "10000", "--host-id", "host"));
        for (int i = 0; i + 1 < args.length; i += 2)
            opts.put(args[i], args[i + 1]);
        if (!opts.keySet().containsAll(List.of("--nodes", "--clients", "--keys", "--seconds"))) {
            System.err.println("usage: run --nodes host:port,... --clients N --keys own|one --seconds S"
                + " [--warmup S] [--ttl-ms MS] [--host-id X]");
            System.exit(2);
        }
        return opts;
    }

    public static void main(String[] args) throws Exception {
        Map<String, String> opts = options(args);
        String[] nodes = opts.get("--nodes").split(",");
        int clients = Integer.parseInt(opts.get("--clients"));
        int ttlMs = Integer.parseInt(opts.get("--ttl-ms"));
        boolean single = System.getenv("PEER_SINGLE") != null;
        String peer = single ? "redisson-rlock" : "redisson-redlock";
        List<RedissonClient> redissons = Arrays.stream(nodes).limit(single ? 1 : nodes.length)
            .map(node -> open(node, clients, ttlMs)).collect(Collectors.toList());

        List<Client> all = new ArrayList<>();
        CountDownLatch opened = new CountDownLatch(clients);
        for (int i = 0; i < clients; i++) {
            String key = opts.get("--keys").equals("one") ? "bench:one"
                : "bench:" + peer + ":" + opts.get("--host-id") + ":" + i;
            RLock[] locks = redissons.stream().map(redisson -> redisson.getLock(key)).toArray(RLock[]::new);
            all.add(new Client(single ? single(locks[0], ttlMs) : redlock(locks), opened));
        }
        // The first use connects: the warm-up begins after every client's first pair.
        all.forEach(Thread::start);
        opened.await(OPEN_MS, TimeUnit.MILLISECONDS);
        OperatingSystemMXBean os = (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        pause(Double.parseDouble(opts.get("--warmup")) * 1e3);
        long cpu = os.getProcessCpuTime(), begun = System.nanoTime();
        phase = Phase.MEASURING;
        pause(Double.parseDouble(opts.get("--seconds")) * 1e3);
        phase = Phase.ENDING;
        double seconds = (System.nanoTime() - begun) / 1e9, cpuS = (os.getProcessCpuTime() - cpu) / 1e9;

        // Let every client give its lock back, or the next round would wait for it.
        long until = System.nanoTime() + DRAIN_MS * 1_000_000L;
        for (Client client : all)
            client.join(Math.max(1, (until - System.nanoTime()) / 1_000_000));

        Histogram pair = new Histogram(), acquire = new Histogram();
        all.forEach(c -> { pair.merge(c.pair); acquire.merge(c.acquire); });
        System.out.println("{\"peer\":\"" + peer + "\",\"version\":\"" + version() + "\",\"clients\":" + clients
            + ",\"keys\":\"" + opts.get("--keys") + "\",\"seconds\":" + seconds
            + ",\"pairs\":" + all.stream().mapToInt(c -> c.pairs).sum()
            + ",\"errors\":" + all.stream().mapToInt(c -> c.errors).sum()
            + ",\"first_error\":" + quoted(all.stream().map(c -> c.firstError).filter(e -> e != null).findFirst().orElse(null))
            + ",\"pair_us\":" + pair.summary() + ",\"acquire_us\":" + acquire.summary()
            + ",\"per_client\":" + all.stream().map(c -> String.valueOf(c.pairs)).collect(Collectors.joining(",", "[", "]"))
            + ",\"cpu_s\":" + cpuS + "}");
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }
}
