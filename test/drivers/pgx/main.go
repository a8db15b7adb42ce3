// pgx: see ../README.md.  Its modes differ in whether the server is asked for the types
// of the parameters.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

var (
	names = []string{"account:1", "account:2"}
	odd   = []string{"a,b", `quote"`, `back\slash`, "{x", "ä"}
)

func main() {
	modes := []struct {
		name string
		mode pgx.QueryExecMode
	}{
		{"cache_statement", pgx.QueryExecModeCacheStatement},
		{"cache_describe", pgx.QueryExecModeCacheDescribe},
		{"describe_exec", pgx.QueryExecModeDescribeExec},
		{"exec", pgx.QueryExecModeExec},
		{"simple_protocol", pgx.QueryExecModeSimpleProtocol},
	}
	for _, m := range modes {
		cases(m.name, m.mode)
	}
}

func cases(name string, mode pgx.QueryExecMode) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	config, err := pgx.ParseConfig(fmt.Sprintf("host=%s port=%s user=%s dbname=%s",
		os.Args[1], os.Args[2], os.Args[3], os.Args[4]))
	if err != nil {
		panic(err)
	}
	config.DefaultQueryExecMode = mode
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		panic(err)
	}
	defer conn.Close(ctx)

	one := func(what, sql string, parameters ...any) {
		var outcome any
		err := conn.QueryRow(ctx, sql, parameters...).Scan(&outcome)
		var refused *pgconn.PgError
		switch {
		case errors.As(err, &refused):
			outcome = refused.Code
		case err != nil:
			outcome = "client"
		}
		fmt.Printf("%s\t%s\t%v\n", name, what, outcome)
	}
	one("acquire", "SELECT redlock_acquire($1)", names)
	one("try", "SELECT redlock_try($1)", names)
	one("acquire_all", "SELECT cardinality(redlock_acquire_all($1, scope => 'session'))", names)
	one("held", "SELECT count(redlock_token(n)) FROM unnest($1::text[]) n", names)
	one("try_all", "SELECT redlock_try_all($1)::int", names)
	one("odd", "SELECT count(redlock_token(n)) FROM unnest($1::text[]) n,"+
		" (SELECT redlock_acquire_all($2, scope => 'session') OFFSET 0) t", odd, odd)
	one("wait", "SELECT redlock_try($1, wait => $2)::int", "free", "1 s")
}
