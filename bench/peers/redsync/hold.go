package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/go-redsync/redsync/v4"
)

// hold takes and gives back locks as its standard input says; see bench/peers/README.md.
func hold(locks *redsync.Redsync, ttl time.Duration) {
	var writing, table sync.Mutex
	held := map[string]*redsync.Mutex{}
	say := func(words ...any) {
		writing.Lock()
		defer writing.Unlock()
		fmt.Println(words...)
	}
	lines := bufio.NewScanner(os.Stdin)
	say("ready")
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		go func(command, key string) {
			switch command {
			case "lock":
				ctx, cancel := context.WithTimeout(context.Background(), holdWait)
				defer cancel()
				mutex := locks.NewMutex(key, redsync.WithExpiry(ttl), redsync.WithTries(noLimit),
					redsync.WithRetryDelay(20*time.Millisecond))
				if mutex.LockContext(ctx) != nil {
					say(key, "refused")
					return
				}
				table.Lock()
				held[key] = mutex
				table.Unlock()
				say(key, "granted")
			case "check": // its README checks nothing before the end of the work
				say(key, "valid")
			case "unlock":
				table.Lock()
				mutex := held[key]
				delete(held, key)
				table.Unlock()
				if mutex != nil {
					_, _ = mutex.Unlock()
				}
				say(key, "released")
			}
		}(words[0], words[1])
	}
}
