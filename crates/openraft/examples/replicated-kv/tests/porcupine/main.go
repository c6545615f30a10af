// Judges a history of the cluster tests by porcupine: a second opinion, by a checker that others wrote.
//
// Usage: go run . history.json
package main

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"time"

	"github.com/anishathalye/porcupine"
)

// As in history.rs. Values are numbers; 0 is no record.
type call struct {
	Kind    string  `json:"kind"`
	Value   uint64  `json:"value"`
	Found   uint64  `json:"found"`
	Old     uint64  `json:"old"`
	New     uint64  `json:"new"`
	Refused *uint64 `json:"refused"`
}

type operation struct {
	Client   int    `json:"client"`
	Key      string `json:"key"`
	Call     call   `json:"call"`
	Called   int64  `json:"called"`
	Returned *int64 `json:"returned"`
}

var model = porcupine.Model{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		keys := map[string][]porcupine.Operation{}
		for _, op := range history {
			key := op.Input.(operation).Key
			keys[key] = append(keys[key], op)
		}
		parts := [][]porcupine.Operation{}
		for _, part := range keys {
			parts = append(parts, part)
		}
		return parts
	},
	Init: func() interface{} { return uint64(0) },
	Step: func(state, input, _ interface{}) (bool, interface{}) {
		op, now := input.(operation), state.(uint64)
		switch c := op.Call; c.Kind {
		case "Put":
			return true, c.Value
		case "Get":
			return c.Found == now, now
		case "Swap":
			if op.Returned == nil {
				// It is unknown what was answered.
				if now == c.Old {
					return true, c.New
				}
				return true, now
			}
			if c.Refused != nil {
				return *c.Refused == now && now != c.Old, now
			}
			return now == c.Old, c.New
		default:
			panic("unknown call " + c.Kind)
		}
	},
}

func main() {
	text, err := os.ReadFile(os.Args[1])
	if err != nil {
		panic(err)
	}
	var operations []operation
	if err := json.Unmarshal(text, &operations); err != nil {
		panic(err)
	}
	history := []porcupine.Operation{}
	for number, op := range operations {
		returned, client := int64(math.MaxInt64), number+1000
		if op.Returned != nil {
			returned, client = *op.Returned, op.Client
		}
		history = append(history, porcupine.Operation{ClientId: client, Input: op, Call: op.Called, Return: returned})
	}
	result, _ := porcupine.CheckOperationsVerbose(model, history, 5*time.Minute)
	fmt.Printf("%d operations: %s\n", len(history), result)
	if result != porcupine.Ok {
		os.Exit(1)
	}
}
