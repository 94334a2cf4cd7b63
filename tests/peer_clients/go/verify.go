package main

import (
	"context"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// verify reads what is committed of the output to its end, and counts.
func verify(ctx context.Context, s settings) (outcome, error) {
	client, err := s.newClient(
		kgo.ConsumeTopics(s.output),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.KeepControlRecords(), // so that the end is seen: it is a marker
	)
	if err != nil {
		return outcome{}, err
	}
	defer client.Close()
	ends, err := committedEnds(ctx, kadm.NewClient(client), s.output)
	if err != nil {
		return outcome{}, err
	}
	unread := map[int32]int64{}
	ends.Each(func(end kadm.ListedOffset) {
		if end.Offset > 0 {
			unread[end.Partition] = end.Offset
		}
	})
	result, seen := outcome{}, make([]int, s.records)
	for len(unread) > 0 {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return outcome{}, err
		}
		fetches.EachRecord(func(r *kgo.Record) {
			if end, wanted := unread[r.Partition]; wanted && r.Offset+1 >= end {
				delete(unread, r.Partition)
			}
			if r.Attrs.IsControl() {
				return
			}
			number, err := strconv.Atoi(string(r.Key))
			if err != nil || string(r.Value) == noise {
				result.Aborted++
				return
			}
			seen[number]++
		})
	}
	for _, times := range seen {
		switch {
		case times == 0:
			result.Missing++
		case times > 1:
			result.Duplicates += times - 1
		}
		if times > 0 {
			result.Records++
		}
	}
	return result, nil
}

// committedEnds asks until it gets an answer: the broker may be gone for a while.
func committedEnds(ctx context.Context, admin *kadm.Client, topic string) (kadm.ListedOffsets, error) {
	for {
		ends, err := admin.ListCommittedOffsets(ctx, topic)
		if err == nil {
			err = ends.Error()
		}
		if err == nil || ctx.Err() != nil {
			return ends, err
		}
		time.Sleep(shortPoll)
	}
}
