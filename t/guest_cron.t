# Real pg_cron on two hosts with the same schedule: each job runs once a tick.
#
# Protects from: a job running on both hosts, together or in turn, because their clocks or loads
# differ by a moment; a tick at which the job runs on neither host; a redlock_run failing when
# pg_cron calls it, by a connection or by a background worker.
#
# Takes over a minute: pg_cron before 1.5 counts in minutes.

use strict;
use warnings;

use RedlockTest;
use Test::More;

my $pkglibdir = qx(pg_config --pkglibdir);
chomp $pkglibdir;
plan skip_all => "no pg_cron in $pkglibdir (Debian: postgresql-NN-cron)"
  unless -e "$pkglibdir/pg_cron.so";

use constant JOBS => 8;
use constant TICKS => 2;

my @nodes = redis_nodes(3);

sub cron_host
{
	my ($name, $conf) = @_;
	my $host = redlock_cluster(
		$name,
		nodes => \@nodes,
		conf  => <<"CONF");
shared_preload_libraries = 'redlock_pg, pg_cron'
cron.database_name = 'postgres'
max_worker_processes = 40
max_connections = 40
$conf
CONF

	$host->safe_psql('postgres', <<'SQL');
CREATE EXTENSION pg_cron;
CREATE TABLE ran (job text, tick timestamptz);
CREATE TABLE alive (tick timestamptz);
SQL
	return $host;
}

# pg_cron uses connections on host a, and background workers on host b
my $host_a = cron_host('a', '');
$host_a->append_conf('postgresql.conf', "cron.host = '" . $host_a->host . "'");
$host_a->restart;
wait_nodes_ready($host_a, scalar @nodes);
my $host_b = cron_host('b', 'cron.use_background_workers = on');
my @hosts = ($host_a, $host_b);
note 'pg_cron ' . $host_a->safe_psql('postgres',
	"SELECT extversion FROM pg_extension WHERE extname = 'pg_cron'");

# The same jobs on both hosts.  "alive" takes no lock, and shows when a host has a tick.
foreach my $host (@hosts)
{
	$host->safe_psql('postgres', <<'SQL');
SELECT cron.schedule('alive', '* * * * *', $$INSERT INTO alive SELECT date_trunc('minute', now())$$);
CREATE PROCEDURE job(name text) LANGUAGE plpgsql AS
$$
	BEGIN
		INSERT INTO ran SELECT name, date_trunc('minute', now());
		COMMIT;
		PERFORM redlock_check(name);
	END
$$;
SQL
	foreach my $job (1 .. JOBS)
	{
		# half of the jobs commit
		my $command = $job % 2
		  ? "CALL job(''job $job'')"
		  : "INSERT INTO ran SELECT ''job $job'', date_trunc(''minute'', now())";
		$host->safe_psql('postgres',
			"SELECT cron.schedule('job $job', '* * * * *', \$\$CALL redlock_run('job $job', '$command', hold_at_least => '30 s')\$\$)"
		);
	}
}

sub rows
{
	my ($host, $sql) = @_;
	return split /\n/, $host->safe_psql('postgres', $sql);
}

# Ticks at which both hosts ran all their jobs.
sub full_ticks
{
	my %hosts;

	foreach my $host (@hosts)
	{
		$hosts{$_}++ foreach rows($host, 'SELECT DISTINCT tick FROM alive');
	}
	my @ticks = sort grep { $hosts{$_} == @hosts } keys %hosts;
	foreach my $host (@hosts)
	{
		@ticks = grep {
			$host->safe_psql('postgres',
				"SELECT count(*) FROM cron.job_run_details WHERE end_time IS NOT NULL AND"
				  . " date_trunc('minute', start_time) = '$_'") == JOBS + 1
		} @ticks;
	}
	return @ticks;
}

wait_until(sub { full_ticks() >= TICKS }, TICKS . ' ticks have come on both hosts', 200);
my @ticks = full_ticks();

# ---- each job ran once, on either host ----

my (%times, %by_host);
foreach my $host (@hosts)
{
	foreach my $row (rows($host, 'SELECT job, tick FROM ran'))
	{
		$times{$row}++;
		$by_host{ $host->name }++;
	}
}
is(join(', ', grep { $times{$_} != 1 } sort keys %times), '', 'no job ran twice at a tick');
foreach my $tick (@ticks)
{
	is(scalar(grep { $times{"job $_|$tick"} } 1 .. JOBS), JOBS, "each job ran at $tick");
}
note 'jobs run: ' . join ', ', map { $_->name . ' ' . ($by_host{ $_->name } // 0) } @hosts;

# ---- both hosts were ready to run the jobs ----

foreach my $host (@hosts)
{
	my $name = $host->name;
	is( $host->safe_psql('postgres', "SELECT count(*) FROM cron.job_run_details WHERE status = 'failed'"),
		0, "nothing failed on $name")
	  or diag($host->safe_psql('postgres', "SELECT * FROM cron.job_run_details WHERE status = 'failed'"));
	is( $host->safe_psql('postgres',
			"SELECT count(*) FROM alive WHERE tick IN (" . join(', ', map { "'$_'" } @ticks) . ')'),
		TICKS, "$name had its ticks")
	  if @ticks == TICKS;
}
done_testing();
