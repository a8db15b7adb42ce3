import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;

import org.redisson.RedissonRedLock;
import org.redisson.api.RFencedLock;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;

/** Takes and gives back locks as standard input says; see bench/peers/README.md. */
@SuppressWarnings("deprecation")
public class Hold {
    static final int WAIT_MS = 10000, CLIENTS = 64;

    /** A lock belongs to the thread that took it, so each key has a thread. */
    static class Key {
        final ExecutorService thread = Executors.newSingleThreadExecutor();
        RLock lock;
    }

    static synchronized void say(String line) {
        System.out.println(line);
        System.out.flush();
    }

    static void lock(String name, Key key, List<RedissonClient> nodes, boolean fenced) {
        try {
            if (key.lock == null)
                key.lock = fenced ? nodes.get(0).getFencedLock(name)
                    : new RedissonRedLock(nodes.stream().map(node -> node.getLock(name)).toArray(RLock[]::new));
            if (fenced) {
                Long token = ((RFencedLock) key.lock).tryLockAndGetToken(WAIT_MS, TimeUnit.MILLISECONDS);
                say(name + (token == null ? " refused" : " granted " + token));
            } else {
                say(name + (key.lock.tryLock(WAIT_MS, TimeUnit.MILLISECONDS) ? " granted" : " refused"));
            }
        } catch (Exception error) {
            say(name + " refused");
        }
    }

    static void unlock(String name, Key key) {
        try {
            key.lock.unlock();
        } catch (Exception ignored) {
        }
        say(name + " released");
    }

    public static void main(String[] args) throws Exception {
        Map<String, String> opts = Map.of(args[0], args[1], args[2], args[3]);
        boolean fenced = System.getenv("HOLD_FENCED") != null;
        List<RedissonClient> nodes = Arrays.stream(opts.get("--nodes").split(",")).limit(fenced ? 1 : 99)
            .map(node -> Peer.open(node, CLIENTS, Integer.parseInt(opts.get("--ttl-ms")))).collect(Collectors.toList());
        Map<String, Key> keys = new ConcurrentHashMap<>();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        say("ready");
        for (String line; (line = lines.readLine()) != null;) {
            String[] words = line.split(" ");
            Key key = keys.computeIfAbsent(words[1], name -> new Key());
            if (words[0].equals("lock"))
                key.thread.execute(() -> lock(words[1], key, nodes, fenced));
            else if (words[0].equals("check")) // its documentation shows no check
                key.thread.execute(() -> say(words[1] + " valid"));
            else
                key.thread.execute(() -> unlock(words[1], key));
        }
        Runtime.getRuntime().halt(0);
    }
}
