// How long a node takes that was away: one that restarts, one that has missed the end of the log, and a new one that is sent the state.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// So much of the data is written while a node is away: a fiftieth.
const missedShare = 50

type status struct {
	LastLogIndex uint64 `json:"last_log_index"`
	LastApplied  *struct {
		Index uint64 `json:"index"`
	} `json:"last_applied"`
}

func ask(address string) (status, error) {
	var found status
	answer, err := quick.Get("http://" + address + "/status")
	if err != nil {
		return found, err
	}
	defer answer.Body.Close()
	return found, json.NewDecoder(answer.Body).Decode(&found)
}

// Waits until a node has applied what the leader has now.
func waitFor(leader, address string) error {
	newest, err := ask(leader)
	if err != nil {
		return err
	}
	for begin := time.Now(); ; time.Sleep(5 * time.Millisecond) {
		found, err := ask(address)
		if err == nil && found.LastApplied != nil && found.LastApplied.Index >= newest.LastLogIndex {
			return nil
		}
		if time.Since(begin) > time.Hour {
			return fmt.Errorf("%s has not caught up: %v, %w", address, found, err)
		}
	}
}

// Of a file of lines with a name and a number, like /proc/PID/io.
func field(path, name string) int64 {
	text, _ := os.ReadFile(path)
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, name+":"); ok {
			number, _ := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			return number
		}
	}
	return 0
}

// Bytes that went through the loopback interface: those of everybody on this machine.
func carried() int64 {
	text, _ := os.ReadFile("/sys/class/net/lo/statistics/rx_bytes")
	number, _ := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	return number
}

func report(name, what string, elapsed time.Duration, network int64, pid int) {
	proc := fmt.Sprintf("/proc/%d/", pid)
	fmt.Printf("%-14s %-8s %7.2f s  network %7.1f MiB  node: read %7.1f MiB, wrote %7.1f MiB, memory at most %5d MiB\n", name, what,
		elapsed.Seconds(), float64(network)/(1<<20), float64(field(proc+"io", "read_bytes"))/(1<<20), float64(field(proc+"io", "write_bytes"))/(1<<20),
		field(proc+"status", "VmHWM")/1024)
}

func catchUp(name, program, dir string) error {
	started, err := startSapwood(program, dir, "--snapshot-after", strconv.Itoa(*snapshotAfter))
	if err != nil {
		return err
	}
	c := started.(*sapwood)
	connections := make([]connection, *clients)
	for number := range connections {
		if connections[number], err = c.connect(); err != nil {
			return err
		}
	}
	begin := time.Now()
	if err := fill(connections, *keys); err != nil {
		return err
	}
	if err := waitFor(c.leader, c.addresses[2]); err != nil {
		return err
	}
	fmt.Printf("%-14s filled with %d keys of %d bytes in %.1f s\n", name, *keys, *bytes, time.Since(begin).Seconds())
	for _, what := range []string{"restart", "log"} {
		c.processes[2].Process.Kill()
		c.processes[2].Wait()
		if what == "log" {
			if err := fill(connections, *keys/missedShare); err != nil {
				return err
			}
		}
		network, begin := carried(), time.Now()
		again := processes{}
		if err := again.start(dir, program, c.arguments[2]...); err != nil {
			return err
		}
		c.processes[2] = again[0]
		if err := waitFor(c.leader, c.addresses[2]); err != nil {
			return err
		}
		report(name, what, time.Since(begin), carried()-network, again[0].Process.Pid)
	}
	// The log has not everything any more, so a new node is sent a snapshot.
	address, err := freeAddress()
	if err != nil {
		return err
	}
	arguments := []string{"--id", "4", "--listen", address, "--dir", filepath.Join(dir, "4"), "--snapshot-after", strconv.Itoa(*snapshotAfter)}
	if err := c.start(dir, program, arguments...); err != nil {
		return err
	}
	if err := until("the new node listens", func() error { _, err := ask(address); return err }); err != nil {
		return err
	}
	network, begin := carried(), time.Now()
	url := "http://" + c.leader + "/cluster/nodes/4"
	// Until it has all of the state, as long as `waitFor` waits.
	ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
	defer cancel()
	if err := send(http.DefaultClient, ctx, "PUT", url, []byte(address)); err != nil {
		return err
	}
	if err := waitFor(c.leader, address); err != nil {
		return err
	}
	report(name, "new node", time.Since(begin), carried()-network, c.processes[3].Process.Pid)
	return nil
}
