// Consume, transform, produce: exactly once, by franz-go's group transactions.
//
// A transactional producer fills the input topic, aborting some of its transactions. Workers of one group copy each
// record to the output topic and commit their positions in the same transaction; some of their transactions are
// aborted on purpose, and a worker leaves and comes back in the middle. In the end the output must hold every
// committed record once and nothing else. The outcome is one line of JSON; the exit code is 1 if it is wrong.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"time"
)

type settings struct {
	brokers, input, output, group string
	records, workers              int
	patience                      time.Duration
	dirty                         bool
	authority, certificate, key   string
}

type outcome struct {
	Records    int   `json:"records"`
	Missing    int   `json:"missing"`
	Duplicates int   `json:"duplicates"`
	Aborted    int   `json:"aborted_seen"`
	Committed  int64 `json:"transactions_committed"`
	Undone     int64 `json:"transactions_aborted"`
	Joins      int64 `json:"worker_starts"`
	Failures   int64 `json:"worker_failures"`
}

func main() {
	var s settings
	flag.StringVar(&s.brokers, "brokers", "", "bootstrap server")
	flag.StringVar(&s.input, "input", "", "input topic")
	flag.StringVar(&s.output, "output", "", "output topic")
	flag.StringVar(&s.group, "group", "", "consumer group, and prefix of the transactional ids")
	flag.IntVar(&s.records, "records", 10000, "committed records of the input")
	flag.IntVar(&s.workers, "workers", 3, "members of the group")
	flag.DurationVar(&s.patience, "patience", 2*time.Minute, "how long the whole may take")
	flag.BoolVar(&s.dirty, "dirty", false, "let the workers read what is not committed, which the check must notice")
	flag.StringVar(&s.authority, "ca", "", "file with the authority of the broker's certificate; empty: no TLS")
	flag.StringVar(&s.certificate, "cert", "", "file with a certificate of one's own")
	flag.StringVar(&s.key, "key", "", "file with its key")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, s.patience)
	defer cancel()
	result, err := run(ctx, s)
	if err != nil {
		fmt.Fprintln(os.Stderr, "etl:", err)
		os.Exit(2)
	}
	if err := json.NewEncoder(os.Stdout).Encode(result); err != nil {
		fmt.Fprintln(os.Stderr, "etl:", err)
		os.Exit(2)
	}
	if result.Missing+result.Duplicates+result.Aborted > 0 {
		os.Exit(1)
	}
}

func run(ctx context.Context, s settings) (outcome, error) {
	ends, err := fill(ctx, s)
	if err != nil {
		return outcome{}, fmt.Errorf("filling %s: %w", s.input, err)
	}
	fmt.Fprintln(os.Stderr, "filled") // whoever wants to kill the broker waits for this
	counts, err := transform(ctx, s, ends)
	if err != nil {
		return outcome{}, fmt.Errorf("transforming: %w", err)
	}
	result, err := verify(ctx, s)
	if err != nil {
		return outcome{}, fmt.Errorf("reading %s: %w", s.output, err)
	}
	result.Committed, result.Undone, result.Joins = counts.committed.Load(), counts.aborted.Load(), counts.starts.Load()
	result.Failures = counts.failures.Load()
	return result, nil
}
