package main

import (
	"context"
	"strconv"

	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	batch = 500 // records of one transaction
	noise = "aborted"
)

// fill writes the keys 0 to records-1 in transactions, and between them transactions that it aborts. It returns, for
// each partition, the offset after the last committed record.
func fill(ctx context.Context, s settings) (map[int32]int64, error) {
	client, err := s.newClient(
		kgo.TransactionalID(s.group+"-input"),
		kgo.DefaultProduceTopic(s.input),
	)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	ends := map[int32]int64{}
	for first := 0; first < s.records; first += batch {
		records := make([]*kgo.Record, 0, batch)
		for number := first; number < min(first+batch, s.records); number++ {
			key := []byte(strconv.Itoa(number))
			records = append(records, &kgo.Record{Key: key, Value: key})
		}
		if err := write(ctx, client, records, kgo.TryCommit); err != nil {
			return nil, err
		}
		for _, r := range records {
			ends[r.Partition] = r.Offset + 1
		}
		if err := write(ctx, client, []*kgo.Record{{Value: []byte(noise)}}, kgo.TryAbort); err != nil {
			return nil, err
		}
	}
	return ends, nil
}

func write(ctx context.Context, client *kgo.Client, records []*kgo.Record, end kgo.TransactionEndTry) error {
	if err := client.BeginTransaction(); err != nil {
		return err
	}
	if err := client.ProduceSync(ctx, records...).FirstErr(); err != nil {
		return err
	}
	return client.EndTransaction(ctx, end)
}
