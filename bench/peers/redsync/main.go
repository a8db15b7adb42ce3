// redsync over rueidis, which gathers the commands of many goroutines into one
// write to a node: 16 clients on their own keys cost 180 us of CPU a pair, over
// go-redis and a connection for each client 500 us.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math"
	"math/rand"
	"net"
	"os"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis"
	redsyncrueidis "github.com/go-redsync/redsync/v4/redis/rueidis"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidiscompat"
)

const (
	nodeTimeout = 500 * time.Millisecond
	openTime    = 2 * time.Second
	drainTime   = 5 * time.Second
	errorPause  = 10 * time.Millisecond
	noLimit     = math.MaxInt

	// 64 clients on one key made 6, 25, 49 and 213 pairs a second with pauses of at
	// most 10, 40, 100 and 200 ms; 16 clients 107, 255, 475 and 475.
	retryMax = 200 * time.Millisecond

	holdWait = 10 * time.Second
)

// Buckets grow by 1%, so a percentile is off by 0.5% at most.
type histogram [2200]uint32

func (h *histogram) add(d time.Duration) {
	us := math.Max(float64(d)/1e3, 1)
	h[min(len(h)-1, int(math.Round(math.Log(us)/math.Log(1.01))))]++
}

func (h *histogram) merge(other *histogram) {
	for i, n := range other {
		h[i] += n
	}
}

func (h *histogram) summary() map[string]any {
	total := 0.0
	for _, n := range h {
		total += float64(n)
	}
	percentile := func(p float64) any {
		left := total * p
		for i, n := range h {
			left -= float64(n)
			if left <= 0 && n > 0 {
				return math.Round(math.Pow(1.01, float64(i)))
			}
		}
		return nil
	}
	return map[string]any{"p50": percentile(0.5), "p95": percentile(0.95), "p99": percentile(0.99)}
}

// What one client counts. The lock is for a client that outlives the run.
type tally struct {
	sync.Mutex
	pairs, errors int
	firstError    any
	pair, acquire histogram
}

func (t *tally) count(begun, held, done time.Time, err error) {
	t.Lock()
	defer t.Unlock()
	if err == nil {
		t.pairs++
		t.acquire.add(held.Sub(begun))
		t.pair.add(done.Sub(begun))
		return
	}
	t.errors++
	if t.firstError == nil {
		t.firstError = err.Error()
	}
}

func (t *tally) merge(other *tally) {
	other.Lock()
	defer other.Unlock()
	t.pairs += other.pairs
	t.errors += other.errors
	if t.firstError == nil {
		t.firstError = other.firstError
	}
	t.pair.merge(&other.pair)
	t.acquire.merge(&other.acquire)
}

// A rueidis client wants its node at birth. This pool is there before: a node that
// does not answer yet is one that fails.
type latePool struct {
	delegate atomic.Pointer[redis.Pool]
}

var errNotConnected = errors.New("not connected yet")

func (p *latePool) Get(ctx context.Context) (redis.Conn, error) {
	pool := p.delegate.Load()
	if pool == nil {
		return nil, errNotConnected
	}
	return (*pool).Get(ctx)
}

func (p *latePool) connect(node string, connected *sync.WaitGroup) {
	for {
		client, err := rueidis.NewClient(rueidis.ClientOption{
			InitAddress:       []string{node},
			ForceSingleClient: true,
			DisableCache:      true,
			DisableRetry:      true,
			Dialer:            net.Dialer{Timeout: nodeTimeout},
			ConnWriteTimeout:  nodeTimeout,
		})
		if err == nil {
			pool := redsyncrueidis.NewPool(rueidiscompat.NewAdapter(client))
			p.delegate.Store(&pool)
			connected.Done()
			return
		}
		time.Sleep(nodeTimeout)
	}
}

func open(nodes []string) []redis.Pool {
	var connected sync.WaitGroup
	pools := make([]redis.Pool, len(nodes))
	for i, node := range nodes {
		pool := &latePool{}
		pools[i] = pool
		connected.Add(1)
		go pool.connect(node, &connected)
	}
	waitAtMost(&connected, openTime)
	return pools
}

func waitAtMost(group *sync.WaitGroup, limit time.Duration) {
	done := make(chan struct{})
	go func() {
		group.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(limit):
	}
}

func pair(mutex *redsync.Mutex) (held time.Time, err error) {
	if err = mutex.Lock(); err != nil {
		return
	}
	held = time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), nodeTimeout)
	defer cancel()
	// With the majority released, an error tells only of the rest.
	ok, err := mutex.UnlockContext(ctx)
	if ok {
		err = nil
	} else if err == nil {
		err = errors.New("not released")
	}
	return
}

const (
	warming int32 = iota
	measuring
	ending
)

func run(mutex *redsync.Mutex, t *tally, phase *atomic.Int32) {
	for phase.Load() != ending {
		begun := time.Now()
		held, err := pair(mutex)
		if phase.Load() == measuring {
			t.count(begun, held, time.Now(), err)
		}
		if err != nil {
			time.Sleep(errorPause)
		}
	}
}

func cpuSeconds() float64 {
	var used syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &used)
	return float64(used.Utime.Nano()+used.Stime.Nano()) / 1e9
}

func version() string {
	versions := map[string]string{}
	info, _ := debug.ReadBuildInfo()
	for _, dep := range info.Deps {
		versions[dep.Path] = strings.TrimPrefix(dep.Version, "v")
	}
	return versions["github.com/go-redsync/redsync/v4"] + " rueidis " + versions["github.com/redis/rueidis"]
}

func main() {
	nodes := flag.String("nodes", "", "host:port,...")
	clients := flag.Int("clients", 0, "number of clients")
	keys := flag.String("keys", "", "own or one")
	seconds := flag.Float64("seconds", 0, "measured time")
	warmup := flag.Float64("warmup", 1, "time before")
	ttlMs := flag.Int("ttl-ms", 10000, "TTL of a lock")
	hostID := flag.String("host-id", "host", "part of the clients' own keys")
	holds := flag.Bool("hold", false, "take and give back locks as standard input says")
	flag.Parse()
	if *holds {
		hold(redsync.New(open(strings.Split(*nodes, ","))...), time.Duration(*ttlMs)*time.Millisecond)
		return
	}
	if *nodes == "" || *clients < 1 || *seconds <= 0 || *keys != "own" && *keys != "one" {
		flag.Usage()
		os.Exit(2)
	}

	ttl := time.Duration(*ttlMs) * time.Millisecond
	locks := redsync.New(open(strings.Split(*nodes, ","))...)
	tallies := make([]tally, *clients)
	var phase atomic.Int32
	var running sync.WaitGroup
	for i := range tallies {
		key := "bench:one"
		if *keys == "own" {
			key = fmt.Sprintf("bench:redsync:%s:%d", *hostID, i)
		}
		// Fail fast goes on with the majority. Without it a pair with two dead nodes
		// takes a second; but a vote that comes in late may stay on its node until
		// its TTL, and then errors show.
		mutex := locks.NewMutex(key,
			redsync.WithExpiry(ttl),
			redsync.WithTimeoutFactor(float64(nodeTimeout)/float64(ttl)),
			redsync.WithFailFast(true),
			redsync.WithTries(noLimit),
			redsync.WithRetryDelayFunc(func(int) time.Duration {
				return time.Duration(rand.Int63n(int64(retryMax)))
			}))
		running.Go(func() { run(mutex, &tallies[i], &phase) })
	}

	time.Sleep(time.Duration(*warmup * float64(time.Second)))
	begun, cpu := time.Now(), cpuSeconds()
	phase.Store(measuring)
	time.Sleep(time.Duration(*seconds * float64(time.Second)))
	phase.Store(ending)
	took, used := time.Since(begun).Seconds(), cpuSeconds()-cpu

	// Let every client give its lock back, or the next round would wait for it.
	waitAtMost(&running, drainTime)

	var total tally
	perClient := make([]int, *clients)
	for i := range tallies {
		before := total.pairs
		total.merge(&tallies[i])
		perClient[i] = total.pairs - before
	}
	line, _ := json.Marshal(map[string]any{
		"peer": "redsync", "version": version(), "clients": *clients, "keys": *keys,
		"seconds": took, "pairs": total.pairs, "errors": total.errors, "first_error": total.firstError,
		"pair_us": total.pair.summary(), "acquire_us": total.acquire.summary(),
		"per_client": perClient, "cpu_s": used,
	})
	fmt.Println(string(line))
}
