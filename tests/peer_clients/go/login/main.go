// A transaction by a franz-go client that authenticates by SASL. It prints "committed" or the error.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

func main() {
	brokers := flag.String("brokers", "", "bootstrap server")
	topic := flag.String("topic", "", "topic")
	mechanism := flag.String("mechanism", "", "SASL mechanism")
	user := flag.String("user", "", "user")
	secret := flag.String("secret", "", "password or access token")
	flag.Parse()
	if err := run(*brokers, *topic, login(*mechanism, *user, *secret)); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("committed")
}

func login(mechanism, user, secret string) sasl.Mechanism {
	switch mechanism {
	case "PLAIN":
		return plain.Auth{User: user, Pass: secret}.AsMechanism()
	case "SCRAM-SHA-256":
		return scram.Auth{User: user, Pass: secret}.AsSha256Mechanism()
	case "SCRAM-SHA-512":
		return scram.Auth{User: user, Pass: secret}.AsSha512Mechanism()
	}
	return oauth.Auth{Token: secret}.AsMechanism()
}

func run(brokers, topic string, mechanism sasl.Mechanism) error {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	client, err := kgo.NewClient(
		kgo.SeedBrokers(brokers),
		kgo.SASL(mechanism),
		kgo.TransactionalID(topic),
		kgo.DefaultProduceTopic(topic),
		kgo.AllowAutoTopicCreation(),
		kgo.RequestRetries(3),
	)
	if err != nil {
		return err
	}
	defer client.Close()
	if err := client.Ping(ctx); err != nil {
		return err
	}
	if err := client.BeginTransaction(); err != nil {
		return err
	}
	if err := client.ProduceSync(ctx, kgo.StringRecord("value")).FirstErr(); err != nil {
		return err
	}
	return client.EndTransaction(ctx, kgo.TryCommit)
}
