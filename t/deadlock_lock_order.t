# Work in one order has no deadlock.  Sessions of three hosts take redlocks, and row locks between
# them, in the same order.  Their waits time out; some sessions are cancelled or terminated.
#
# Protects from: error 40P01 without a cycle.
#
# COMMITS in the environment is the number of transactions; half an hour takes some 30,000.

use strict;
use warnings;

use RedlockTest;
use Test::More;

my $commits = $ENV{COMMITS} // 300;
my $LOCKS   = 6;

# With the short deadlock_timeout nearly each wait sends probes.
my @nodes = redis_nodes(3);
my $conf  = "redlock.ttl = '60s'\ndeadlock_timeout = '5ms'\nmax_connections = 40";
my @hosts = map { redlock_cluster($_, nodes => \@nodes, conf => $conf) } qw(a b c);

foreach my $host (@hosts)
{
	$host->safe_psql('postgres', <<SQL);
CREATE TABLE stop (id int);
CREATE TABLE victims (detail text);
CREATE TABLE shared_rows AS SELECT id, 0 AS n FROM generate_series(1, $LOCKS) id;
CREATE SEQUENCE done;
CREATE SEQUENCE failed;
CREATE PROCEDURE work() LANGUAGE plpgsql AS \$\$
DECLARE
    told text;
    lock int;
BEGIN
    WHILE NOT EXISTS (SELECT FROM stop) LOOP
        BEGIN
            PERFORM set_config('lock_timeout', (1 + random() * 1000)::int || ' ms', true);
            FOR lock IN SELECT id FROM generate_series(1, $LOCKS) id WHERE random() < 0.4 ORDER BY id LOOP
                PERFORM redlock_acquire('order ' || lock, wait => CASE WHEN random() < 0.2 THEN '20 ms'::interval END);
                PERFORM pg_sleep(random() * 0.02);
                IF random() < 0.5 THEN
                    UPDATE shared_rows SET n = n + 1 WHERE id = lock;
                END IF;
            END LOOP;
            PERFORM nextval('done');
        EXCEPTION
            WHEN deadlock_detected THEN
                GET STACKED DIAGNOSTICS told = PG_EXCEPTION_DETAIL;
                INSERT INTO victims VALUES (told);
            WHEN lock_not_available OR query_canceled THEN
                PERFORM nextval('failed');
        END;
        COMMIT;
    END LOOP;
END \$\$;
SQL
}

my %count = disturb_work($commits, @hosts);
note("$count{done} transactions, $count{failed} that gave up, $count{cancelled} cancelled, $count{terminated} terminated");
cmp_ok($count{failed}, '>', 0, 'some waits end without the lock');
cmp_ok($count{terminated} + $count{cancelled}, '>', 0, 'some are ended from outside');
foreach my $host (@hosts)
{
	is($host->safe_psql('postgres', 'SELECT count(*), max(detail) FROM victims'), '0|', $host->name . ': nobody was in a deadlock');
	wait_until(sub { $host->safe_psql('postgres', 'SELECT count(*) FROM redlock_locks') == 0 }, $host->name . ': all is released');
}

done_testing();
