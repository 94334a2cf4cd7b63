// What kadm, franz-go's administrative client, is answered about elections, replicas, quotas, features and settings.
//
// It prints one line of JSON: by question, the answer or the error.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

const patience = time.Minute

func main() {
	brokers := flag.String("brokers", "", "bootstrap server")
	topic := flag.String("topic", "", "a topic of one partition")
	flag.Parse()
	answers, err := ask(*brokers, *topic)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if err := json.NewEncoder(os.Stdout).Encode(answers); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

type answers map[string]string

func (a answers) note(question string, err error, message string) {
	a[question] = "done"
	if err != nil {
		a[question] = err.Error() + ": " + message
	}
}

func ask(brokers, topic string) (answers, error) {
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers))
	if err != nil {
		return nil, err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	admin, found := kadm.NewClient(client), answers{}
	for _, step := range []func(context.Context, *kadm.Client, string, answers) error{
		elections, reassignments, directories, quotas, features, settings,
	} {
		if err := step(ctx, admin, topic, found); err != nil {
			return nil, err
		}
	}
	return found, nil
}

func partition(topic string) kadm.TopicsSet {
	var set kadm.TopicsSet
	set.Add(topic, 0)
	return set
}

func elections(ctx context.Context, admin *kadm.Client, topic string, found answers) error {
	some, err := admin.ElectLeaders(ctx, kadm.ElectPreferredReplica, partition(topic))
	if err != nil {
		return err
	}
	found.note("election", some[topic][0].Err, some[topic][0].ErrMessage)
	all, err := admin.ElectLeaders(ctx, kadm.ElectLiveReplica, nil)
	if err != nil {
		return err
	}
	found["elections of all"] = fmt.Sprint(len(all[topic]))
	return nil
}

func reassignments(ctx context.Context, admin *kadm.Client, topic string, found answers) error {
	for name, replicas := range map[string][]int32{"same": {0}, "other": {1}, "cancelled": nil} {
		var request kadm.AlterPartitionAssignmentsReq
		request.Assign(topic, 0, replicas)
		altered, err := admin.AlterPartitionAssignments(ctx, request)
		if err != nil {
			return err
		}
		found.note("reassignment "+name, altered[topic][0].Err, altered[topic][0].ErrMessage)
	}
	listed, err := admin.ListPartitionReassignments(ctx, partition(topic))
	found["reassignments"] = fmt.Sprint(len(listed))
	return err
}

func directories(ctx context.Context, admin *kadm.Client, topic string, found answers) error {
	described, err := admin.DescribeAllLogDirs(ctx, partition(topic))
	if err != nil {
		return err
	}
	for _, directory := range described[0].Sorted() {
		for name, path := range map[string]string{"own": directory.Dir, "other": "/no/such/directory"} {
			var request kadm.AlterReplicaLogDirsReq
			request.Add(path, partition(topic))
			moved, err := admin.AlterAllReplicaLogDirs(ctx, request)
			if err != nil {
				return err
			}
			for _, result := range moved[0].Sorted() {
				found.note("directory "+name, result.Err, "")
			}
		}
	}
	return nil
}

func quotas(ctx context.Context, admin *kadm.Client, _ string, found answers) error {
	described, err := admin.DescribeClientQuotas(ctx, false, nil)
	if err != nil {
		return err
	}
	found["quotas"] = fmt.Sprint(len(described))
	name := "app"
	entity := kadm.ClientQuotaEntity{{Type: "client-id", Name: &name}}
	quota := kadm.AlterClientQuotaOp{Key: "producer_byte_rate", Value: 1000}
	altered, err := admin.AlterClientQuotas(ctx, []kadm.AlterClientQuotaEntry{{Entity: entity, Ops: []kadm.AlterClientQuotaOp{quota}}})
	if err != nil {
		return err
	}
	found.note("quota", altered[0].Err, altered[0].ErrMessage)
	return nil
}

func features(ctx context.Context, admin *kadm.Client, _ string, found answers) error {
	for name, update := range map[string]kadm.FeatureUpdate{
		"feature": {Feature: "transaction.version", MaxVersionLevel: 2, UpgradeType: 1},
		"lower":   {Feature: "transaction.version", MaxVersionLevel: 1, UpgradeType: 2},
	} {
		updated, err := admin.UpdateFeatures(ctx, true, update)
		if err == nil {
			err = updated.Error()
		}
		found.note(name, err, "")
	}
	return nil
}

func settings(ctx context.Context, admin *kadm.Client, _ string, found answers) error {
	backoff, threads := "5000", "9"
	for name, change := range map[string]kadm.AlterConfig{
		"backoff": {Op: kadm.SetConfig, Name: "log.cleaner.backoff.ms", Value: &backoff},
		"threads": {Op: kadm.SetConfig, Name: "num.io.threads", Value: &threads},
	} {
		altered, err := admin.AlterBrokerConfigs(ctx, []kadm.AlterConfig{change})
		if err != nil {
			return err
		}
		found.note(name, altered[0].Err, altered[0].ErrMessage)
	}
	described, err := admin.DescribeBrokerConfigs(ctx, 0)
	if err != nil {
		return err
	}
	for _, config := range described[0].Configs {
		if config.Key == "log.cleaner.backoff.ms" {
			found["log.cleaner.backoff.ms"] = config.MaybeValue()
		}
	}
	return nil
}
