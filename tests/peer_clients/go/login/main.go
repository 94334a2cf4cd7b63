// A transaction by a franz-go client that authenticates by SASL, over TLS, or both. It prints "committed" or the error.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
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
	authority := flag.String("ca", "", "the authority's certificate, for TLS")
	flag.Parse()
	var options []kgo.Opt
	if *mechanism != "" {
		options = append(options, kgo.SASL(login(*mechanism, *user, *secret)))
	}
	if *authority != "" {
		options = append(options, kgo.DialTLSConfig(trusting(*authority)))
	}
	if err := run(*brokers, *topic, options); err != nil {
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

func trusting(path string) *tls.Config {
	pem, err := os.ReadFile(path)
	if err != nil {
		panic(err)
	}
	config := &tls.Config{RootCAs: x509.NewCertPool()}
	config.RootCAs.AppendCertsFromPEM(pem)
	return config
}

func run(brokers, topic string, options []kgo.Opt) error {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	client, err := kgo.NewClient(append(options,
		kgo.SeedBrokers(brokers),
		kgo.TransactionalID(topic),
		kgo.DefaultProduceTopic(topic),
		kgo.AllowAutoTopicCreation(),
		kgo.RequestRetries(3),
	)...)
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
