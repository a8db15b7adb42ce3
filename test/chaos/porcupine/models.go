package main

// The models: what docs/reference promises, as state machines that porcupine compares with a
// history.  Nothing here is taken from test/chaos/check.py.

import (
	"fmt"
	"math"
	"sort"
	"strings"

	"github.com/anishathalye/porcupine"
)

// Operation is one line of a history; README.md of test/chaos describes the fields.
type Operation struct {
	Client   string `json:"client"`
	Resource string `json:"resource"`
	Mode     string `json:"mode"`
	Kind     string `json:"kind"`
	Call     int64  `json:"call"`
	Return   *int64 `json:"return"`
	Token    int64  `json:"token"`
	Outcome  string `json:"outcome"`
	Grant    int    `json:"grant"`
	Permits  int    `json:"permits"`
	Store    string `json:"store"`
	Value    int64  `json:"value"`
}

const (
	forever = math.MaxInt64
	// A grant by the nodes has this many tokens for hand-overs (docs/reference/waiting.md).
	tokensOfGrant = 1001
)

// Check is a model with a history that the model must explain.
type Check struct {
	Name       string // of the model
	Subject    string // the lock, or the data
	Model      porcupine.Model
	Operations []porcupine.Operation
}

// checksOf returns the checks of a history.  With `beyond`, clocks of nodes were set forward:
// limits.md then promises neither one holder nor the order of hand-overs.
func checksOf(history []Operation, beyond bool) []Check {
	var checks []Check

	locks, data := map[string][]Operation{}, map[string][]Operation{}
	for _, op := range history {
		if op.Store != "" {
			subject := op.Resource + " at " + op.Store
			data[subject] = append(data[subject], op)
		} else if op.Outcome == "ok" {
			locks[op.Resource] = append(locks[op.Resource], op)
		}
	}
	for _, name := range sorted(locks) {
		if !beyond {
			checks = append(checks, Check{"holders", name, holders(), timed(withEnds(locks[name]))})
		}
		if grants := orderedGrants(locks[name], beyond); len(grants) > 0 {
			checks = append(checks, Check{"tokens", name, tokens(), timed(grants)})
		}
	}
	for _, name := range sorted(data) {
		checks = append(checks, Check{"register", name, register(), timed(data[name])})
	}
	return checks
}

func sorted(groups map[string][]Operation) []string {
	var names []string
	for name := range groups {
		names = append(names, name)
	}
	sort.Strings(names)
	return names
}

// timed gives each operation its interval.  An operation without a known end may take effect
// after all others.
func timed(ops []Operation) []porcupine.Operation {
	var found []porcupine.Operation
	clients := map[string]int{}
	for _, op := range ops {
		if _, ok := clients[op.Client]; !ok {
			clients[op.Client] = len(clients)
		}
		until := int64(forever)
		if op.Return != nil {
			until = *op.Return
		}
		found = append(found, porcupine.Operation{ClientId: clients[op.Client], Input: op, Call: op.Call, Return: until})
	}
	return found
}

func describe(op Operation) string {
	until := "?"
	if op.Return != nil {
		until = fmt.Sprint(*op.Return)
	}
	text := fmt.Sprintf("%s %s %s [%d, %s]", op.Client, op.Mode, op.Kind, op.Call, until)
	if op.Store != "" {
		return fmt.Sprintf("%s value %d token %d %s", text, op.Value, op.Token, op.Outcome)
	}
	return fmt.Sprintf("%s grant %d token %d", text, op.Grant, op.Token)
}

func model(init func() interface{}, step func(state interface{}, op Operation) (bool, interface{})) porcupine.Model {
	return porcupine.Model{
		Init: init,
		Step: func(state, input, output interface{}) (bool, interface{}) {
			return step(state, input.(Operation))
		},
		DescribeOperation: func(input, output interface{}) string { return describe(input.(Operation)) },
	}
}

// ---- holders: an exclusive lock, readers and a writer, permits ----

// withEnds adds an end to each grant that no confirmed release ends.
//
// A client that was cancelled, or lost its lease or its server, saw its lease valid at its last
// look.  The lease ended at an unknown moment from this look on, or never.  The model ends the
// lease right after the look.  This accepts the same histories as an end at any later moment: only
// looks and releases of this grant need the lease, and all of them come before.  And the search
// stays small.
func withEnds(ops []Operation) []Operation {
	last, released := map[int]Operation{}, map[int]bool{}
	for _, op := range ops {
		if op.Kind == "release" {
			released[op.Grant] = true
		} else if seen, ok := last[op.Grant]; !ok || *op.Return > *seen.Return {
			last[op.Grant] = op
		}
	}
	var grants []int
	for grant := range last {
		if !released[grant] {
			grants = append(grants, grant)
		}
	}
	sort.Ints(grants)
	ended := append([]Operation{}, ops...)
	for _, grant := range grants {
		end := last[grant]
		end.Kind, end.Call = "end", *end.Return
		ended = append(ended, end)
	}
	return ended
}

// The state is the text of all holders, each " mode#grant".
func holders() porcupine.Model {
	return model(
		func() interface{} { return "" },
		func(state interface{}, op Operation) (bool, interface{}) {
			held := state.(string)
			mine := fmt.Sprintf(" %s#%d", op.Mode, op.Grant)
			all := strings.Fields(held)
			switch op.Kind {
			case "acquire":
				return admits(held, len(all), op), join(append(all, mine[1:]))
			case "look":
				return strings.Contains(held+" ", mine+" "), held
			case "release", "end":
				return strings.Contains(held+" ", mine+" "), strings.TrimSuffix(strings.Replace(held+" ", mine+" ", " ", 1), " ")
			}
			return false, held
		})
}

// admits tells whether a lock with these holders can be granted.
func admits(held string, number int, op Operation) bool {
	switch op.Mode {
	case "exclusive":
		return number == 0
	case "shared":
		return !strings.Contains(held, "exclusive")
	case "permits":
		return number < op.Permits
	}
	return false
}

// join makes one text of the holders in any order.
func join(all []string) string {
	sort.Strings(all)
	return " " + strings.Join(all, " ")
}

// ---- tokens: their order ----

type newest struct {
	any, exclusive int64
}

// tokens: an exclusive holder has a larger token than all earlier holders, a reader than all
// earlier exclusive holders.
func tokens() porcupine.Model {
	return model(
		func() interface{} { return newest{} },
		func(state interface{}, op Operation) (bool, interface{}) {
			was := state.(newest)
			if op.Mode == "shared" {
				return op.Token > was.exclusive, newest{larger(was.any, op.Token), was.exclusive}
			}
			return op.Token > was.any, newest{op.Token, op.Token}
		})
}

func larger(a, b int64) int64 {
	if a > b {
		return a
	}
	return b
}

// orderedGrants returns the grants whose tokens have a promised order.  Each permit has tokens of
// its own, and no client knows the number of its permit.  With `beyond`, a hand-over may be older
// than another host's grant: leaves out a token that may belong to an earlier grant of its host.
func orderedGrants(ops []Operation, beyond bool) []Operation {
	var grants, found []Operation
	for _, op := range ops {
		if op.Kind == "acquire" && op.Mode != "permits" {
			grants = append(grants, op)
		}
	}
	for _, op := range grants {
		if !beyond || !mayBeHandOver(op, grants) {
			found = append(found, op)
		}
	}
	return found
}

func mayBeHandOver(op Operation, grants []Operation) bool {
	for _, other := range grants {
		span := op.Token - other.Token
		if hostOf(other) == hostOf(op) && *other.Return < *op.Return && span < tokensOfGrant &&
			(span > 0 || span == 0 && op.Mode == "shared") {
			return true
		}
	}
	return false
}

// hostOf: the name of a client is host/number.
func hostOf(op Operation) string {
	return strings.SplitN(op.Client, "/", 2)[0]
}

// ---- register: data behind a fence ----

type written struct {
	value, token int64
}

// register: each write reads the value, adds one, and has a token.  No update is lost, and no
// write follows a write with a larger token.  A write with an unknown outcome may have no effect.
func register() porcupine.Model {
	return model(
		func() interface{} { return written{} },
		func(state interface{}, op Operation) (bool, interface{}) {
			was := state.(written)
			if op.Kind == "read" {
				return op.Value == was.value, was
			}
			if op.Value == was.value+1 && op.Token >= was.token {
				return true, written{op.Value, op.Token}
			}
			return op.Outcome == "unknown", was
		})
}
