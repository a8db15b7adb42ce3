// Checks a history of test/chaos by porcupine, a checker of linearizability.
//
//	check [-beyond] [-timeout DURATION] FILE
//
// Prints a line for each check: ok, illegal or unknown (no answer within the timeout), the model,
// and the lock or the data.  After "illegal" come lines that begin with a space: the operations
// that were explained last, and those that nothing explains.  A page that shows the whole history
// is written beside FILE.  Ends with an error if the history cannot be read.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"sort"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

// How many operations a story shows of each kind.
const shown = 4

func main() {
	beyond := flag.Bool("beyond", false, "clocks of nodes were set forward")
	timeout := flag.Duration("timeout", 30*time.Second, "for each check")
	flag.Parse()
	if flag.NArg() != 1 {
		flag.Usage()
		os.Exit(2)
	}
	file, err := os.Open(flag.Arg(0))
	exitOn(err)
	history, err := read(file)
	exitOn(err)
	for _, check := range checksOf(history, *beyond) {
		result, info := porcupine.CheckOperationsVerbose(check.Model, check.Operations, *timeout)
		fmt.Println(strings.ToLower(string(result)), check.Name, check.Subject)
		if result == porcupine.Illegal {
			fmt.Print(story(check, info))
			page := fmt.Sprintf("%s.%s.%s.html", flag.Arg(0), check.Name, strings.ReplaceAll(check.Subject, " ", "_"))
			exitOn(porcupine.VisualizePath(check.Model, info, page))
		}
	}
}

func exitOn(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "porcupine:", err)
		os.Exit(2)
	}
}

// read refuses an unknown field, kind, mode or outcome: a check of nothing would pass.
func read(from io.Reader) ([]Operation, error) {
	var history []Operation
	lines := bufio.NewReader(from)
	decoder := json.NewDecoder(lines)
	decoder.DisallowUnknownFields()
	for {
		var op Operation
		err := decoder.Decode(&op)
		if err == io.EOF {
			return history, nil
		}
		if err == nil {
			err = valid(op)
		}
		if err != nil {
			return nil, fmt.Errorf("operation %d: %w", len(history)+1, err)
		}
		history = append(history, op)
	}
}

func valid(op Operation) error {
	known := map[string]string{"kind": op.Kind, "mode": op.Mode, "outcome": op.Outcome}
	words := map[string]string{
		"kind":    " acquire look release write read ",
		"mode":    " exclusive shared permits ",
		"outcome": " ok refused failed unknown ",
	}
	for field, word := range known {
		if !strings.Contains(words[field], " "+word+" ") {
			return fmt.Errorf("unknown %s %q", field, word)
		}
	}
	if op.Outcome == "ok" && (op.Return == nil || *op.Return < op.Call) {
		return fmt.Errorf("returns before its call")
	}
	if isData := op.Kind == "write" || op.Kind == "read"; isData != (op.Store != "") {
		return fmt.Errorf("%s with the store %q", op.Kind, op.Store)
	}
	return nil
}

// story shows the end of the best explanation, and the operations that should have been next.  The
// best is the one that reaches farthest: its first unexplained operation returned last.
func story(check Check, info porcupine.LinearizationInfo) string {
	var best, rest []porcupine.Operation
	for _, partition := range info.PartialLinearizationsOperations() {
		for _, some := range partition {
			if left := unexplained(check.Operations, some); rest == nil || left[0].Return > rest[0].Return {
				best, rest = some, left
			}
		}
	}
	text := fmt.Sprintf("  %d of %d operations are explained; the last of these:\n", len(best), len(check.Operations))
	if len(best) > shown {
		best = best[len(best)-shown:]
	}
	if len(rest) > shown {
		rest = rest[:shown]
	}
	return text + lines(best) + "  next should come:\n" + lines(rest)
}

// unexplained returns the other operations, by their returns.
func unexplained(all, explained []porcupine.Operation) []porcupine.Operation {
	known := map[Operation]bool{}
	for _, op := range explained {
		known[op.Input.(Operation)] = true
	}
	var rest []porcupine.Operation
	for _, op := range all {
		if !known[op.Input.(Operation)] {
			rest = append(rest, op)
		}
	}
	sort.Slice(rest, func(i, j int) bool { return rest[i].Return < rest[j].Return })
	return rest
}

func lines(ops []porcupine.Operation) string {
	var text strings.Builder
	for _, op := range ops {
		fmt.Fprintf(&text, "    %s\n", describe(op.Input.(Operation)))
	}
	return text.String()
}
