# Ten thousand fencing tokens and more, from sessions of two hosts that contend for a few locks,
# while nodes with wrong clocks are killed and restarted in turn.  No token is given out twice, no
# token is smaller than a token returned before its request, and no two sessions hold a lock at a
# time.
#
# Protects from (invariants 1, 2, 8 and 13): tokens following the wrong clock; counters or leases
# lost by a restart; a token shared by two sessions of a turn.
#
# First the nodes write each command to disk; then one host's clock is wrong, too.  Last, the nodes
# forget all data: the hosts' clocks, which are right, keep tokens in order.
#
# TOKENS=100000 in the environment asks for 100000 tokens in place of 10000.

use strict;
use warnings;

use PostgreSQL::Test::Utils;
use RedlockTest;
use Test::More;

my $tokens     = ($ENV{TOKENS} // 10000) / 2;    # of each part
my $resources  = 3;
my $sessions   = 3;                         # of each host
my @node_clock = (0, 1800, -2400, 0, 60);   # seconds ahead

my $library = preload('wrong_clock') // plan skip_all => 'no C compiler';

# Runs code that starts servers.
sub with_clock
{
	my ($seconds, $code) = @_;
	local $ENV{LD_PRELOAD}    = $library;
	local $ENV{WRONG_CLOCK_S} = $seconds;

	return $code->();
}

sub host
{
	my ($name, $clock, @options) = @_;
	my $host = with_clock($clock, sub { redlock_cluster($name, @options) });

	$host->safe_psql(
		'postgres', <<~SQL);
		CREATE UNLOGGED TABLE got (resource text, token bigint,
		    asked timestamptz, got timestamptz, until timestamptz);

		-- "until" is null when the lease was lost meanwhile
		CREATE PROCEDURE work(tokens int) LANGUAGE plpgsql AS \$\$
		DECLARE
		    done int := 0;
		    failed int := 0;
		    r text;
		    t bigint;
		    asked timestamptz;
		    got timestamptz;
		    until timestamptz;
		BEGIN
		    WHILE done < tokens LOOP
		        r := 'r' || floor($resources * random());
		        asked := clock_timestamp() - interval '$clock s';
		        BEGIN
		            t := redlock_acquire(r, wait => '5 s', scope => 'session');
		            got := clock_timestamp() - interval '$clock s';
		        EXCEPTION WHEN OTHERS THEN
		            failed := failed + 1;
		            CONTINUE;
		        END;
		        PERFORM count(*) FROM generate_series(1, 500);
		        until := clock_timestamp() - interval '$clock s';
		        IF NOT redlock_release(r) THEN
		            until := NULL;
		        END IF;
		        INSERT INTO got VALUES (r, t, asked, got, until);
		        done := done + 1;
		        IF done % 100 = 0 THEN
		            COMMIT;
		        END IF;
		    END LOOP;
		    RAISE INFO 'failed %', failed;
		END \$\$;
		SQL
	return $host;
}

# The sessions of both hosts work while the nodes restart in turn.
sub part
{
	my ($what, %options) = @_;
	my $name  = $what =~ s/\W.*//r;
	my @nodes = map {
		my $clock = $_;
		with_clock($clock, sub { redis_node(persist => $options{persist}) })
	} @node_clock;
	my %cluster = (
		nodes => \@nodes,
		conf  => "redlock.ttl = '1s'\nredlock.max_ttl = '2s'\nredlock.on_loss = error\n"
		  . "redlock.handover_limit = $options{handovers}\nlog_statement = none\n"
		  . 'autovacuum = off');
	my @hosts = (
		host("a_$name", 0, %cluster),
		host("b_$name", $options{clock_b}, %cluster));
	is($nodes[2]->cli('TIME') < time - 2000 ? 'behind' : 'right',
		'behind', "$what: the clock of a node is wrong");

	my $each = int($tokens / (@hosts * $sessions)) + 1;
	my @working =
	  map {
		my $host = $_;
		map { session($host) } 1 .. $sessions
	  } @hosts;
	$_->query('SET client_min_messages = error') foreach @working;
	$_->send("CALL work($each)") foreach @working;

	my $restarts = 0;
	my $all_done = sub { !grep { !$_->done } @working };
	until ($all_done->())
	{
		my $i = $restarts++ % @nodes;

		$nodes[$i]->kill9;
		with_clock($node_clock[$i], sub { $nodes[$i]->start });
		# one node at a time
		wait_until_quietly(
			sub { $all_done->() || 2 == grep { ready($_) == 5 } @hosts });
	}
	my $failed = 0;
	foreach my $session (@working)
	{
		my $result = $session->result;

		is($result->{state}, '', "$what: a session got all its locks") or diag($result->{err});
		$failed += $1 if $result->{err} =~ /failed (\d+)/;
		$session->quit;
	}

	my @numbers = map {
		$_->safe_psql('postgres', 'SELECT granted, handed_over, lost, renewed FROM redlock_stats')
	} @hosts;
	note "$what: $restarts restarts of nodes, $failed failed acquisitions;",
	  " granted|handed over|lost|renewed: @numbers";
	cmp_ok($restarts, '>=', $options{restarts}, "$what: nodes were restarted");

	my $file = PostgreSQL::Test::Utils::tempdir() . "/got_$name";
	$hosts[1]->safe_psql('postgres', "COPY got TO '$file'");
	$hosts[0]->safe_psql('postgres', "COPY got FROM '$file'");
	check($hosts[0], $what, $each * @working);
	$_->stop foreach @hosts;
	$_->kill9 foreach @nodes;
	return;
}

sub ready
{
	my ($host) = @_;
	return $host->safe_psql('postgres', "SELECT count(*) FROM redlock_nodes WHERE state = 'ready'");
}

sub wait_until_quietly
{
	my ($condition) = @_;
	my $until = time + $PostgreSQL::Test::Utils::timeout_default;

	until ($condition->())
	{
		die 'timed out' if time > $until;
		select undef, undef, undef, 0.1;
	}
	return;
}

sub check
{
	my ($host, $what, $expected) = @_;
	my $value = sub { $host->safe_psql('postgres', $_[0]) };

	is($value->('SELECT count(*) FROM got'), $expected, "$what: $expected tokens");
	is($value->('SELECT count(*) - count(DISTINCT (resource, token)) FROM got'),
		'0', "$what: none twice");

	# each token is larger than all tokens returned before its request, by this machine's clock
	my $order = <<~'SQL';
		WITH events AS (
		    SELECT resource, token, asked AS at, 1 AS kind FROM got
		    UNION ALL
		    SELECT resource, token, got, 2 FROM got
		), seen AS (
		    SELECT kind, token,
		           max(CASE kind WHEN 2 THEN token END)
		               OVER (PARTITION BY resource ORDER BY at, kind ROWS UNBOUNDED PRECEDING) AS newest
		      FROM events
		) SELECT %s FROM seen WHERE kind = 1 AND %s
		SQL
	is($value->(sprintf $order, 'count(*)', 'token <= newest'), '0', "$what: none out of order")
	  or diag($value->(sprintf $order, "string_agg(token || ' after ' || newest, ', ')", 'token <= newest'));
	cmp_ok($value->(sprintf $order, 'count(*)', 'newest IS NOT NULL'),
		'>', 0.9 * $expected, "$what: most could have been");

	is( $value->(<<~'SQL'), '0', "$what: no lock was held by two");
		SELECT count(*) FROM (
		    SELECT got, max(until) OVER (PARTITION BY resource ORDER BY got
		                                 ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS held
		      FROM got WHERE until IS NOT NULL) h
		 WHERE got < held
		SQL
	note "$what: ", $value->('SELECT count(*) FROM got WHERE until IS NULL'), ' leases were lost; ',
	  $value->('SELECT round(count(*) / extract(epoch FROM max(got) - min(got))) FROM got'),
	  ' tokens per second';
	return;
}

part('durable nodes', persist => 1, clock_b => 600, handovers => 1000, restarts => 1);
part('forgetful nodes', persist => 0, clock_b => 0, handovers => 10, restarts => 1);

done_testing();
