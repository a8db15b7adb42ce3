package main

// Made-up histories, each with one fault that exactly one model must find; and the history beside
// it without the fault.

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
)

// parse reads "client mode kind call-return token grant", one operation a line; for data
// "client store kind call-return token value".  "?" is an unknown return.
func parse(t *testing.T, text string) []Operation {
	var json strings.Builder
	for _, line := range strings.Split(strings.TrimSpace(text), "\n") {
		var client, mode, kind, times string
		var token, number int64
		if _, err := fmt.Sscan(line, &client, &mode, &kind, &times, &token, &number); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		call, until, _ := strings.Cut(times, "-")
		outcome, store, grant, value := "ok", "", number, int64(0)
		if until == "?" {
			outcome, until = "unknown", "null"
		}
		if kind == "write" || kind == "read" {
			store, mode, grant, value = mode, "exclusive", 0, number
		}
		fmt.Fprintf(&json, `{"client":"%s","resource":"r","mode":"%s","kind":"%s","call":%s,"return":%s,"token":%d,`+
			`"outcome":"%s","grant":%d,"permits":2,"store":"%s","value":%d}`+"\n",
			client, mode, kind, call, until, token, outcome, grant, store, value)
	}
	history, err := read(strings.NewReader(json.String()))
	if err != nil {
		t.Fatal(err)
	}
	return history
}

// illegal returns the names of the models that refuse the history.
func illegal(history []Operation, beyond bool) string {
	var found []string
	for _, check := range checksOf(history, beyond) {
		result, info := porcupine.CheckOperationsVerbose(check.Model, check.Operations, 10*time.Second)
		if result == porcupine.Illegal {
			found = append(found, check.Name)
			story(check, info)
		} else if result == porcupine.Unknown {
			found = append(found, "unknown "+check.Name)
		}
	}
	return strings.Join(found, " ")
}

var histories = []struct {
	name, text, finds string
}{
	{"one holder after the other", `
		a/0 exclusive acquire 10-20 100 1
		a/0 exclusive look 25-25 100 1
		b/0 exclusive acquire 12-41 200 2
		a/0 exclusive release 40-50 100 1
		b/0 exclusive release 60-70 200 2`, ""},
	{"a grant while the holder looks on", `
		a/0 exclusive acquire 10-20 100 1
		b/0 exclusive acquire 12-24 200 2
		a/0 exclusive look 25-25 100 1
		b/0 exclusive look 26-26 200 2`, "holders"},
	{"a commit after the loss, when another holds the lock", `
		a/0 exclusive acquire 10-20 100 1
		b/0 exclusive acquire 12-30 200 2
		a/0 exclusive release 40-50 100 1`, "holders"},
	{"a lost lease ends at an unknown moment", `
		a/0 exclusive acquire 10-20 100 1
		a/0 exclusive look 22-22 100 1
		b/0 exclusive acquire 12-23 200 2
		b/0 exclusive release 24-25 200 2`, ""},
	{"a lost lease that was seen valid once more", `
		a/0 exclusive acquire 10-20 100 1
		b/0 exclusive acquire 12-23 200 2
		a/0 exclusive look 24-24 100 1
		b/0 exclusive release 25-26 200 2`, "holders"},
	{"a release by a session that holds the lock no more", `
		a/0 exclusive acquire 10-20 100 1
		a/0 exclusive release 30-31 100 1
		a/0 exclusive release 40-41 100 1`, "holders"},
	{"a release that may come before its return", `
		a/0 exclusive acquire 10-20 100 1
		a/0 exclusive release 30-90 100 1
		b/0 exclusive acquire 12-40 200 2
		b/0 exclusive look 50-50 200 2`, ""},
	{"a smaller token later", `
		a/0 exclusive acquire 10-20 200 1
		a/0 exclusive release 22-23 200 1
		b/0 exclusive acquire 30-40 100 2
		b/0 exclusive release 42-43 100 2`, "tokens"},
	{"a token twice", `
		a/0 exclusive acquire 10-20 100 1
		a/0 exclusive release 22-23 100 1
		a/1 exclusive acquire 21-40 100 2
		a/1 exclusive release 42-43 100 2`, "tokens"},
	{"readers beside each other, then a writer", `
		a/0 shared acquire 10-20 100 1
		a/1 shared acquire 21-22 100 2
		b/0 shared acquire 21-25 99 3
		a/0 shared look 30-30 100 1
		a/1 shared look 30-30 100 2
		b/0 shared look 30-30 99 3
		b/1 exclusive acquire 31-40 300 4
		b/1 exclusive release 42-43 300 4`, ""},
	{"a writer beside a reader", `
		a/0 shared acquire 10-20 100 1
		b/1 exclusive acquire 11-25 300 4
		a/0 shared look 30-30 100 1
		b/1 exclusive release 42-43 300 4`, "holders"},
	{"a reader beside a writer", `
		b/1 exclusive acquire 11-25 100 4
		a/0 shared acquire 26-27 200 1
		b/1 exclusive release 42-43 100 4`, "holders"},
	{"a reader with a token below an earlier writer's", `
		b/1 exclusive acquire 11-15 300 4
		b/1 exclusive release 16-17 300 4
		a/0 shared acquire 20-25 100 1`, "tokens"},
	{"a writer with a token below an earlier reader's", `
		a/0 shared acquire 10-12 300 1
		b/1 exclusive acquire 15-17 200 4`, "tokens"},
	{"two permits of two", `
		a/0 permits acquire 10-20 100 1
		b/0 permits acquire 10-21 100 2
		a/0 permits release 24-26 100 1
		c/0 permits acquire 10-25 300 3
		b/0 permits look 30-30 100 2
		c/0 permits look 30-30 300 3`, ""},
	{"three permits of two", `
		a/0 permits acquire 10-20 100 1
		b/0 permits acquire 10-21 100 2
		c/0 permits acquire 10-25 300 3
		a/0 permits look 26-26 100 1
		b/0 permits look 30-30 100 2
		c/0 permits look 30-30 300 3`, "holders"},
	{"writes in order, and one that may have failed", `
		a/0 data write 10-20 100 1
		a/0 data write 30-? 100 2
		b/0 data write 30-40 200 2
		b/0 data read 90-90 0 2`, ""},
	{"a write of unknown outcome that was read", `
		a/0 data write 10-? 100 1
		b/0 data write 30-40 200 2
		b/0 data read 90-90 0 2`, ""},
	{"a lost update", `
		a/0 data write 10-20 100 1
		b/0 data write 30-40 200 1
		b/0 data read 90-90 0 1`, "register"},
	{"a stale write", `
		a/0 data write 10-20 200 1
		b/0 data write 30-40 100 2
		b/0 data read 90-90 0 2`, "register"},
	{"a committed value that is gone", `
		a/0 data write 10-20 100 1
		a/0 data write 30-40 100 2
		b/0 data read 90-90 0 1`, "register"},
	{"a value from nowhere", `
		a/0 data write 10-20 100 1
		b/0 data read 90-90 0 2`, "register"},
	{"a write that the next holder did not see", `
		a/0 data write 30-40 100 2
		b/0 data write 50-60 200 1
		b/0 data read 90-90 0 2`, "register"},
}

func TestHistories(t *testing.T) {
	for _, h := range histories {
		if found := illegal(parse(t, h.text), false); found != h.finds {
			t.Errorf("%s: found %q, expected %q", h.name, found, h.finds)
		}
	}
}

// Clocks of nodes were set forward: two holders are possible, and tokens of hand-overs are not
// in order.
var beyond = []struct {
	name, text, finds string
}{
	{"two holders", `
		a/0 exclusive acquire 10-20 100 1
		b/0 exclusive acquire 12-24 2000 2
		a/0 exclusive look 25-25 100 1
		b/0 exclusive look 26-26 2000 2`, ""},
	{"a hand-over after another host's grant", `
		a/0 exclusive acquire 10-20 100 1
		b/0 exclusive acquire 12-24 2000 2
		a/1 exclusive acquire 25-30 101 3`, ""},
	{"a grant after another host's grant, with a smaller token", `
		a/0 exclusive acquire 10-20 100 1
		b/0 exclusive acquire 12-24 4000 2
		a/1 exclusive acquire 25-30 2000 3`, "tokens"},
	{"a smaller token on one host", `
		a/0 exclusive acquire 10-20 2000 1
		a/1 exclusive acquire 25-30 1500 2`, "tokens"},
	{"another host's token is no hand-over", `
		a/0 exclusive acquire 10-20 100 1
		b/0 exclusive acquire 12-24 4000 2
		c/1 exclusive acquire 25-30 101 3`, "tokens"},
	{"a stale write", `
		a/0 data write 10-20 200 1
		b/0 data write 30-40 100 2
		b/0 data read 90-90 0 2`, "register"},
}

func TestBeyond(t *testing.T) {
	for _, h := range beyond {
		if found := illegal(parse(t, h.text), true); found != h.finds {
			t.Errorf("%s: found %q, expected %q", h.name, found, h.finds)
		}
	}
}

// A long history with waiters and lost leases, and one fault at its end.
func TestLong(t *testing.T) {
	var text strings.Builder
	for i := 0; i < 1000; i++ {
		at := 100 * i
		fmt.Fprintf(&text, "a/%d exclusive acquire %d-%d %d %d\n", i%15, at-min15(i)*100, at+20, 1000+i, i+1)
		fmt.Fprintf(&text, "a/%d exclusive look %d-%d %d %d\n", i%15, at+30, at+30, 1000+i, i+1)
		if i%3 > 0 {
			fmt.Fprintf(&text, "a/%d exclusive release %d-%d %d %d\n", i%15, at+40, at+90, 1000+i, i+1)
		}
	}
	if found := illegal(parse(t, text.String()), false); found != "" {
		t.Errorf("found %q in a history without a fault", found)
	}
	fmt.Fprintf(&text, "b/0 exclusive look %d-%d %d %d\n", 99990, 99990, 1002, 3)
	if found := illegal(parse(t, text.String()), false); found != "holders" {
		t.Errorf("found %q, expected a look at a lease that ended long ago", found)
	}
}

func min15(i int) int {
	if i < 14 {
		return i
	}
	return 14
}

func TestRead(t *testing.T) {
	good := `{"client":"a/0","resource":"r","mode":"shared","kind":"acquire","call":1,"return":2,"token":1,"outcome":"ok","grant":1}`
	if _, err := read(strings.NewReader(good)); err != nil {
		t.Error(err)
	}
	for _, change := range [][2]string{{"acquire", "aquire"}, {"shared", "share"}, {`"ok"`, `"fine"`}, {"grant", "grants"},
		{`"return":2`, `"return":null`}, {`"return":2`, `"return":0`}, {"acquire", "write"}} {
		if _, err := read(strings.NewReader(strings.Replace(good, change[0], change[1], 1))); err == nil {
			t.Errorf("%s instead of %s is accepted", change[1], change[0])
		}
	}
}
