// Starting and asking nodes.
package main

import (
	"bufio"
	bytesOf "bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	etcd "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// How long a cluster may take to begin.
const patience = 30 * time.Second

// Asks what is answered at once: a node that stands still is not waited for without end.
var quick = http.Client{Timeout: patience}

// Ends with Ctrl-C, which goes to this program and may go to the nodes as well.
var stopping, _ = signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)

// All that were started, until their directory is removed.
var running struct {
	sync.Mutex
	all []*exec.Cmd
}

// Does what takes a directory and nodes in it, and removes both, also after Ctrl-C.
func inDirectory(prefix string, do func(dir string) error) error {
	dir, err := os.MkdirTemp(*parent, prefix)
	if err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() { done <- do(dir) }()
	select {
	case err = <-done:
	case <-stopping.Done():
		err = context.Cause(stopping)
	}
	running.Lock()
	defer running.Unlock()
	for _, command := range running.all {
		_ = command.Process.Kill()
		// Not of the command, for which somebody else may wait.
		_, _ = command.Process.Wait()
	}
	running.all = nil
	return errors.Join(err, os.RemoveAll(dir))
}

type processes []*exec.Cmd

func (p *processes) start(dir, program string, arguments ...string) error {
	running.Lock()
	defer running.Unlock()
	if stopping.Err() != nil {
		return context.Cause(stopping)
	}
	log, err := os.CreateTemp(dir, "log-")
	if err != nil {
		return err
	}
	command := exec.Command(program, arguments...)
	command.Stdout, command.Stderr = log, log
	// They must not outlive this program.
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := command.Start(); err != nil {
		return err
	}
	*p = append(*p, command)
	running.all = append(running.all, command)
	return nil
}

func (p processes) cpu() time.Duration {
	var ticks int64
	for _, command := range p {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", command.Process.Pid))
		if err != nil {
			continue
		}
		// After the name: user and system time are the 12th and the 13th field.
		fields := strings.Fields(string(text[bytesOf.LastIndexByte(text, ')')+1:]))
		for _, field := range fields[11:13] {
			number, _ := strconv.ParseInt(field, 10, 64)
			ticks += number
		}
	}
	return time.Duration(ticks) * (time.Second / 100)
}

func freeAddress() (string, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer listener.Close()
	return listener.Addr().String(), nil
}

func until(what string, ask func() error) error {
	begin := time.Now()
	for {
		err := ask()
		if err == nil {
			return nil
		}
		if time.Since(begin) > patience {
			return fmt.Errorf("%s: %w", what, err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// The value of a metric in the text format of Prometheus.
func metric(address, name string) (float64, error) {
	answer, err := quick.Get("http://" + address + "/metrics")
	if err != nil {
		return 0, err
	}
	defer answer.Body.Close()
	lines := bufio.NewScanner(answer.Body)
	for lines.Scan() {
		if value, ok := strings.CutPrefix(lines.Text(), name+" "); ok {
			return strconv.ParseFloat(value, 64)
		}
	}
	return 0, fmt.Errorf("%s is not among the metrics", name)
}

type sapwood struct {
	processes
	leader string
	// Of each node, in the order of their numbers.
	addresses []string
	arguments [][]string
}

func send(client *http.Client, ctx context.Context, method, url string, body []byte) error {
	request, err := http.NewRequestWithContext(ctx, method, url, bytesOf.NewReader(body))
	if err != nil {
		return err
	}
	answer, err := client.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s %s: %s: %s", method, url, answer.Status, text)
	}
	return err
}

func startSapwood(program, dir string, more ...string) (cluster, error) {
	c := &sapwood{}
	for id := 1; id <= 3; id++ {
		address, err := freeAddress()
		if err != nil {
			return nil, err
		}
		arguments := []string{"--id", strconv.Itoa(id), "--listen", address, "--dir", filepath.Join(dir, strconv.Itoa(id))}
		arguments = append(arguments, more...)
		c.addresses, c.arguments = append(c.addresses, address), append(c.arguments, arguments)
		if err := c.start(dir, program, arguments...); err != nil {
			return nil, err
		}
	}
	c.leader = c.addresses[0]
	ctx := context.Background()
	err := until("the first node begins", func() error {
		return send(&quick, ctx, "POST", "http://"+c.leader+"/cluster/init", nil)
	})
	for id := 2; id <= 3 && err == nil; id++ {
		err = until("a node joins", func() error {
			url := fmt.Sprintf("http://%s/cluster/nodes/%d", c.leader, id)
			return send(&quick, ctx, "PUT", url, []byte(c.addresses[id-1]))
		})
	}
	return c, err
}

func (c *sapwood) syncs() (float64, error) { return metric(c.leader, "sapwood_log_syncs_total") }

func (c *sapwood) connect() (connection, error) {
	transport := &http.Transport{MaxConnsPerHost: 1, MaxIdleConnsPerHost: 1, DisableCompression: true}
	return &overHTTP{http.Client{Transport: transport}, "http://" + c.leader + "/records/"}, nil
}

type overHTTP struct {
	client http.Client
	url    string
}

func (c *overHTTP) put(ctx context.Context, key string, value []byte) error {
	return send(&c.client, ctx, "PUT", c.url+key, value)
}

func (c *overHTTP) get(ctx context.Context, key string) error {
	return send(&c.client, ctx, "GET", c.url+key, nil)
}

type etcdCluster struct {
	processes
	leader string
}

func startEtcd(program, dir string, _ ...string) (cluster, error) {
	c := &etcdCluster{}
	names, asked, members := []string{"n1", "n2", "n3"}, []string{}, []string{}
	peers := []string{}
	for _, name := range names {
		client, err := freeAddress()
		if err != nil {
			return nil, err
		}
		peer, err := freeAddress()
		if err != nil {
			return nil, err
		}
		asked, peers = append(asked, client), append(peers, peer)
		members = append(members, name+"=http://"+peer)
	}
	for number, name := range names {
		err := c.start(dir, program, "--name", name, "--data-dir", filepath.Join(dir, name), "--log-level", "error",
			"--listen-client-urls", "http://"+asked[number], "--advertise-client-urls", "http://"+asked[number],
			"--listen-peer-urls", "http://"+peers[number], "--initial-advertise-peer-urls", "http://"+peers[number],
			"--initial-cluster", strings.Join(members, ","), "--initial-cluster-state", "new")
		if err != nil {
			return nil, err
		}
	}
	err := until("there is a leader", func() error {
		for _, address := range asked {
			client, err := etcd.New(etcd.Config{Endpoints: []string{address}, DialTimeout: time.Second, Logger: zap.NewNop()})
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			status, err := client.Status(ctx, address)
			cancel()
			client.Close()
			if err != nil {
				return err
			}
			if status.Leader != 0 && status.Leader == status.Header.MemberId {
				c.leader = address
				return nil
			}
		}
		return fmt.Errorf("none of them leads")
	})
	return c, err
}

func (c *etcdCluster) syncs() (float64, error) {
	return metric(c.leader, "etcd_disk_wal_fsync_duration_seconds_count")
}

func (c *etcdCluster) connect() (connection, error) {
	client, err := etcd.New(etcd.Config{Endpoints: []string{c.leader}, DialTimeout: 5 * time.Second, Logger: zap.NewNop()})
	return &overGRPC{client}, err
}

type overGRPC struct{ client *etcd.Client }

func (c *overGRPC) put(ctx context.Context, key string, value []byte) error {
	_, err := c.client.Put(ctx, key, string(value))
	return err
}

func (c *overGRPC) get(ctx context.Context, key string) error {
	answer, err := c.client.Get(ctx, key)
	if err == nil && len(answer.Kvs) != 1 {
		err = fmt.Errorf("%s is not there", key)
	}
	return err
}
