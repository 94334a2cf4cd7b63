package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"os"

	"github.com/twmb/franz-go/pkg/kgo"
)

// options are those of every client, and more: where the broker is, and TLS if there is an authority.
func (s settings) options(more ...kgo.Opt) ([]kgo.Opt, error) {
	all := append([]kgo.Opt{kgo.SeedBrokers(s.brokers)}, more...)
	if s.authority == "" {
		return all, nil
	}
	pem, err := os.ReadFile(s.authority)
	if err != nil {
		return nil, err
	}
	config := &tls.Config{RootCAs: x509.NewCertPool()}
	if !config.RootCAs.AppendCertsFromPEM(pem) {
		return nil, errors.New("no certificate in " + s.authority)
	}
	if s.certificate != "" {
		own, err := tls.LoadX509KeyPair(s.certificate, s.key)
		if err != nil {
			return nil, err
		}
		config.Certificates = []tls.Certificate{own}
	}
	return append(all, kgo.DialTLSConfig(config)), nil
}

// newClient makes a client with these options.
func (s settings) newClient(more ...kgo.Opt) (*kgo.Client, error) {
	all, err := s.options(more...)
	if err != nil {
		return nil, err
	}
	return kgo.NewClient(all...)
}
