package sim

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

// DefaultBehaviour is the built-in behaviour.yaml.
func DefaultBehaviour() *Behaviour {
	behaviour, err := parseRules(defaultBehaviour)
	if err != nil {
		panic(err) // the embedded file; a test parses it
	}
	return behaviour
}

// ParseBehaviour reads YAML. The rules given come before the built-in ones, and
// the images given are added to the built-in ones. An error is one line that names
// the field; unknown fields are errors.
func ParseBehaviour(data []byte) (*Behaviour, error) {
	given, err := parseRules(data)
	if err != nil {
		return nil, err
	}
	return given.withDefaults(), nil
}

func parseRules(data []byte) (*Behaviour, error) {
	behaviour, err := decodeRules(data)
	if err != nil {
		return nil, fmt.Errorf("simulated behaviour: %w", err)
	}
	return behaviour, nil
}

func decodeRules(data []byte) (*Behaviour, error) {
	text, err := yaml.YAMLToJSONStrict(data)
	if err != nil {
		return nil, errors.New(oneLine(err))
	}
	var raw any
	if err := json.Unmarshal(text, &raw); err != nil {
		return nil, err
	}
	if err := misfit(reflect.TypeFor[Behaviour](), raw, ""); err != nil {
		return nil, err
	}
	var behaviour Behaviour
	unknown, err := kjson.UnmarshalStrict(text, &behaviour)
	switch {
	case err != nil:
		return nil, err
	case len(unknown) > 1:
		return nil, fmt.Errorf("%w, and %d more", unknown[0], len(unknown)-1)
	case len(unknown) == 1:
		return nil, unknown[0]
	}
	return &behaviour, behaviour.validate()
}

func (b *Behaviour) validate() error {
	for i, rule := range b.Rules {
		if rule.Pull != nil && rule.Pull.Code != "" {
			if _, known := grpcCode(rule.Pull.Code); !known {
				return fmt.Errorf("rules[%d].pull.code: unknown grpc code %q", i, rule.Pull.Code)
			}
		}
		if l := rule.Listen; l != nil && l.HealthStatus != 0 && (l.HealthStatus < 100 || l.HealthStatus > 599) {
			return fmt.Errorf("rules[%d].listen.healthStatus: %d is no HTTP status", i, l.HealthStatus)
		}
	}
	for i, rule := range b.Nodes {
		if rule.Lost.Repeat && rule.Lost.For.Duration == 0 {
			return fmt.Errorf("nodes[%d].lost.repeat: needs lost.for, or the node is gone after the first time", i)
		}
	}
	return nil
}

// misfit finds the first value that does not fit its field, which the decoder
// reports without saying where it is.
func misfit(t reflect.Type, value any, path string) error {
	if value == nil {
		return nil
	}
	switch {
	case t == reflect.TypeFor[metav1.Duration]():
		return badDuration(value, path)
	case t.Kind() == reflect.Pointer:
		return misfit(t.Elem(), value, path)
	case t.Kind() == reflect.Struct:
		fields, ok := value.(map[string]any)
		if !ok {
			return fmt.Errorf("%s: want fields, not %s", named(path), shown(value))
		}
		return misfitField(t, fields, path)
	case t.Kind() == reflect.Slice:
		items, ok := value.([]any)
		if !ok {
			return fmt.Errorf("%s: want a list, not %s", named(path), shown(value))
		}
		for i, item := range items {
			if err := misfit(t.Elem(), item, fmt.Sprintf("%s[%d]", path, i)); err != nil {
				return err
			}
		}
		return nil
	}
	text, err := json.Marshal(value)
	if err == nil {
		err = json.Unmarshal(text, reflect.New(t).Interface())
	}
	if err != nil {
		return fmt.Errorf("%s: want %s, not %s", named(path), plainName(t), shown(value))
	}
	return nil
}

func misfitField(t reflect.Type, values map[string]any, path string) error {
	types := map[string]reflect.Type{}
	collectFields(t, types)
	for _, name := range slices.Sorted(maps.Keys(values)) {
		if types[name] == nil {
			continue // the strict decoder names it
		}
		if err := misfit(types[name], values[name], strings.TrimPrefix(path+"."+name, ".")); err != nil {
			return err
		}
	}
	return nil
}

// collectFields finds the types of fields by their names in the file, those of
// inlined structs among them.
func collectFields(t reflect.Type, types map[string]reflect.Type) {
	for i := range t.NumField() {
		field := t.Field(i)
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		switch {
		case field.Anonymous:
			collectFields(field.Type, types)
		case name != "":
			types[name] = field.Type
		}
	}
}

func badDuration(value any, path string) error {
	var d metav1.Duration
	text, err := json.Marshal(value)
	if err == nil {
		err = d.UnmarshalJSON(text)
	}
	switch {
	case err != nil:
		return fmt.Errorf("%s: %s is no duration, such as 500ms or 1m30s", named(path), shown(value))
	case d.Duration < 0:
		return fmt.Errorf("%s: %s must not be negative", named(path), d.Duration)
	}
	return nil
}

func named(path string) string {
	if path == "" {
		return "the file"
	}
	return path
}

func shown(value any) string {
	text, err := json.Marshal(value)
	if err != nil {
		return fmt.Sprint(value)
	}
	const most = 40
	if len(text) > most {
		return string(text[:most]) + "…"
	}
	return string(text)
}

// plainName is a type as a person calls it.
func plainName(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.String:
		return "a text"
	case reflect.Int, reflect.Int32, reflect.Int64:
		return "a whole number"
	default:
		return t.String()
	}
}

func oneLine(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }
