// A broker in memory for the benchmarks: franz-go's kfake, with its own defaults. It prints its address, and ends with
// its standard input.
package main

import (
	"fmt"
	"io"
	"os"

	"github.com/twmb/franz-go/pkg/kfake"
)

func main() {
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.Ports(0))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	defer cluster.Close()
	fmt.Println(cluster.ListenAddrs()[0])
	_, _ = io.Copy(io.Discard, os.Stdin)
}
