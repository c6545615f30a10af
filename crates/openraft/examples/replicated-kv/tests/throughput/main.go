// Measures three replicated nodes on this machine by turns: sapwood-node, etcd, and others that speak sapwood-node's interface.
//
// Usage: go run . [flags] NAME=PROGRAM…
//
// A program whose name begins with "etcd" is started as etcd and asked by its own client (gRPC); any other is started as sapwood-node and asked
// over HTTP/1.1. All else is the same: one process of clients, each with a connection of its own to the leader; keys, values, time; fresh
// directories in each turn. A put is durable on a majority when it returns, and a get is linearizable, in all of them.
package main

import (
	"context"
	"flag"
	"fmt"
	"math/rand"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

var (
	clients       = flag.Int("clients", 64, "clients, each with one request at a time")
	seconds       = flag.Int("seconds", 10, "seconds of each measurement, after two more of warming up")
	rounds        = flag.Int("rounds", 3, "rounds, in each of which everything has its turn")
	keys          = flag.Int("keys", 100_000, "different keys")
	bytes         = flag.Int("bytes", 100, "bytes of a value")
	catching      = flag.Bool("catch-up", false, "measure how long nodes take that were away, with so many keys and bytes, in place of throughput")
	snapshotAfter = flag.Int("snapshot-after", 1000, "for -catch-up: a snapshot is made, and the log purged, after so many entries")
	parent        = flag.String("dir", "", "where the nodes have their directories: on the disk that is to be measured")
)

const warmUp = 2 * time.Second

// A connection of one client to the leader.
type connection interface {
	put(ctx context.Context, key string, value []byte) error
	// Linearizable. It is an error if there is no such key.
	get(ctx context.Context, key string) error
}

// Three nodes that run.
type cluster interface {
	connect() (connection, error)
	// Syncs of the leader's log up to now.
	syncs() (float64, error)
	// Processor time of all nodes.
	cpu() time.Duration
}

// What one measurement has shown.
type result struct {
	perSecond  float64
	p50, p99   time.Duration
	nodesCPU   time.Duration // of an operation, all nodes together
	clientsCPU time.Duration // of an operation
	syncsPerOp float64       // of the leader
}

func key(number int) string { return fmt.Sprintf("key-%012d", number) }

func ownCPU() time.Duration {
	var usage syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &usage)
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// Lets all clients do one thing for a time.
func measure(c cluster, connections []connection, do func(connection, *rand.Rand) error) (result, error) {
	var measuring, done atomic.Bool
	var group sync.WaitGroup
	latencies := make([][]time.Duration, len(connections))
	failures := make(chan error, len(connections))
	for number, connection := range connections {
		group.Add(1)
		go func() {
			defer group.Done()
			random := rand.New(rand.NewSource(rand.Int63()))
			for !done.Load() {
				begin, counts := time.Now(), measuring.Load()
				if err := do(connection, random); err != nil {
					failures <- err
					return
				}
				if counts {
					latencies[number] = append(latencies[number], time.Since(begin))
				}
			}
		}()
	}
	time.Sleep(warmUp)
	syncs, err := c.syncs()
	if err != nil {
		return result{}, err
	}
	nodes, own, begin := c.cpu(), ownCPU(), time.Now()
	measuring.Store(true)
	time.Sleep(time.Duration(*seconds) * time.Second)
	nodes, own = c.cpu()-nodes, ownCPU()-own
	syncsAfter, err := c.syncs()
	if err != nil {
		return result{}, err
	}
	elapsed := time.Since(begin)
	done.Store(true)
	group.Wait()
	select {
	case err := <-failures:
		return result{}, err
	default:
	}
	all := slices.Concat(latencies...)
	if len(all) == 0 {
		return result{}, fmt.Errorf("nothing was answered")
	}
	slices.Sort(all)
	count := time.Duration(len(all))
	return result{
		perSecond:  float64(len(all)) / elapsed.Seconds(),
		p50:        all[len(all)/2],
		p99:        all[len(all)*99/100],
		nodesCPU:   nodes / count,
		clientsCPU: own / count,
		syncsPerOp: (syncsAfter - syncs) / float64(len(all)),
	}, nil
}

var alphabet = func() []byte {
	text := make([]byte, 1<<20)
	for at := range text {
		text[at] = 'a' + byte(rand.Intn(26))
	}
	return text
}()

// A value that does not compress away.
func letters(random *rand.Rand) []byte {
	at := random.Intn(len(alphabet) - *bytes)
	return alphabet[at : at+*bytes]
}

func put(c connection, random *rand.Rand) error {
	value := letters(random)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return c.put(ctx, key(random.Intn(*keys)), value)
}

func get(c connection, random *rand.Rand) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return c.get(ctx, key(random.Intn(*keys)))
}

// Writes the first keys once, so that gets find them.
func fill(connections []connection, keys int) error {
	var next atomic.Int64
	failures := make(chan error, len(connections))
	for _, connection := range connections {
		go func() {
			random := rand.New(rand.NewSource(rand.Int63()))
			for {
				number := int(next.Add(1)) - 1
				if number >= keys {
					failures <- nil
					return
				}
				if err := connection.put(context.Background(), key(number), letters(random)); err != nil {
					failures <- err
					return
				}
			}
		}()
	}
	for range connections {
		if err := <-failures; err != nil {
			return err
		}
	}
	return nil
}

func turn(name, program, dir string) (puts, gets result, err error) {
	start := startSapwood
	if strings.HasPrefix(name, "etcd") {
		start = startEtcd
	}
	c, err := start(program, dir)
	if err != nil {
		return
	}
	connections := make([]connection, *clients)
	for number := range connections {
		if connections[number], err = c.connect(); err != nil {
			return
		}
	}
	if err = fill(connections, *keys); err != nil {
		return
	}
	if puts, err = measure(c, connections, put); err != nil {
		return
	}
	gets, err = measure(c, connections, get)
	return
}

func (r result) String() string {
	return fmt.Sprintf("%7.0f/s  p50 %6.2f ms  p99 %6.2f ms  CPU of an operation: nodes %4d µs, clients %3d µs  syncs %.3f", r.perSecond,
		float64(r.p50.Microseconds())/1000, float64(r.p99.Microseconds())/1000, r.nodesCPU.Microseconds(), r.clientsCPU.Microseconds(), r.syncsPerOp)
}

func median(values []result) result {
	slices.SortFunc(values, func(a, b result) int { return int(a.perSecond - b.perSecond) })
	return values[len(values)/2]
}

func main() {
	flag.Parse()
	puts, gets := map[string][]result{}, map[string][]result{}
	names := []string{}
	for round := range *rounds {
		for _, argument := range flag.Args() {
			name, program, ok := strings.Cut(argument, "=")
			if !ok {
				fmt.Fprintf(os.Stderr, "%s: NAME=PROGRAM is expected\n", argument)
				os.Exit(2)
			}
			if round == 0 {
				names = append(names, name)
			}
			if *catching {
				again := func(dir string) error { return catchUp(name, program, dir) }
				if err := inDirectory("catch-up-", again); err != nil {
					fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
					os.Exit(1)
				}
				continue
			}
			var p, g result
			once := func(dir string) (err error) {
				p, g, err = turn(name, program, dir)
				return err
			}
			if err := inDirectory("throughput-", once); err != nil {
				fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
				os.Exit(1)
			}
			fmt.Printf("round %d  %-14s puts %v\nround %d  %-14s gets %v\n", round+1, name, p, round+1, name, g)
			puts[name], gets[name] = append(puts[name], p), append(gets[name], g)
		}
	}
	if *catching {
		return
	}
	fmt.Printf("\nMedians of %d rounds: %d clients, %d keys, values of %d bytes\n", *rounds, *clients, *keys, *bytes)
	for _, name := range names {
		fmt.Printf("%-14s puts %v\n%-14s gets %v\n", name, median(puts[name]), name, median(gets[name]))
	}
}
