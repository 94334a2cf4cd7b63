package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	abortEvery = 7  // transactions of a worker
	leaveAfter = 10 // transactions, after which the first worker leaves and comes back
	mostPolled = 200
	shortPoll  = 100 * time.Millisecond
)

type counters struct{ committed, aborted, starts, failures atomic.Int64 }

// transform runs the workers until the group's committed positions have reached the ends of the input. A worker that
// fails, as it does when the broker is gone for a while, is replaced by one of the same transactional id.
func transform(ctx context.Context, s settings, ends map[int32]int64) (*counters, error) {
	counts := new(counters)
	done, finish := context.WithCancel(ctx)
	defer finish()
	var workers sync.WaitGroup
	for index := range s.workers {
		workers.Add(1)
		go func() {
			defer workers.Done()
			for first := index == 0; done.Err() == nil; first = false {
				limit := -1
				if first {
					limit = leaveAfter
				}
				if err := work(ctx, done, s, index, limit, counts); err != nil {
					counts.failures.Add(1)
					fmt.Fprintf(os.Stderr, "worker %d: %v\n", index, err)
					time.Sleep(shortPoll)
				}
			}
		}()
	}
	err := untilConsumed(ctx, s, ends)
	finish()
	workers.Wait()
	return counts, err
}

// work copies records until done, or for limit transactions if that is not negative.
func work(ctx, done context.Context, s settings, index, limit int, counts *counters) error {
	isolation := kgo.ReadCommitted()
	if s.dirty {
		isolation = kgo.ReadUncommitted()
	}
	options, err := s.options(
		kgo.TransactionalID(fmt.Sprintf("%s-%d", s.group, index)),
		kgo.ConsumerGroup(s.group),
		kgo.ConsumeTopics(s.input),
		kgo.DefaultProduceTopic(s.output),
		kgo.FetchIsolationLevel(isolation),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.RequireStableFetchOffsets(),
		kgo.HeartbeatInterval(300*time.Millisecond),
		kgo.SessionTimeout(10*time.Second),
	)
	if err != nil {
		return err
	}
	session, err := kgo.NewGroupTransactSession(options...)
	if err != nil {
		return err
	}
	defer session.Close()
	counts.starts.Add(1)
	for turn := 1; done.Err() == nil && (limit < 0 || turn <= limit); {
		polled, release := context.WithTimeout(done, shortPoll)
		fetches := session.PollRecords(polled, mostPolled)
		release()
		if err := fetchError(fetches); err != nil {
			return err
		}
		if fetches.Empty() {
			continue
		}
		if err := session.Begin(); err != nil {
			return err
		}
		fetches.EachRecord(func(r *kgo.Record) {
			session.Produce(ctx, &kgo.Record{Key: r.Key, Value: r.Value}, func(_ *kgo.Record, _ error) {})
		}) // a record that fails makes the session abort
		committed, err := session.End(ctx, kgo.TransactionEndTry(turn%abortEvery != 0))
		if err != nil {
			return err
		}
		if committed {
			counts.committed.Add(1)
		} else {
			counts.aborted.Add(1)
		}
		turn++
	}
	return nil
}

func fetchError(fetches kgo.Fetches) error {
	for _, failed := range fetches.Errors() {
		if !errors.Is(failed.Err, context.DeadlineExceeded) && !errors.Is(failed.Err, context.Canceled) {
			return failed.Err
		}
	}
	return nil
}

// untilConsumed returns once the group has committed the whole input.
func untilConsumed(ctx context.Context, s settings, ends map[int32]int64) error {
	client, err := s.newClient()
	if err != nil {
		return err
	}
	defer client.Close()
	admin := kadm.NewClient(client)
	for ; ctx.Err() == nil; time.Sleep(shortPoll) {
		committed, err := admin.FetchOffsets(ctx, s.group)
		if err != nil {
			continue // the broker is gone for a while
		}
		behind := 0
		for partition, end := range ends {
			if position, found := committed.Lookup(s.input, partition); !found || position.At < end {
				behind++
			}
		}
		if behind == 0 {
			return nil
		}
	}
	return context.Cause(ctx)
}
