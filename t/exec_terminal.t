# redlock-exec on a terminal, under a shell with job control.
#
# Protects from: a command unable to read from the terminal, also in $(...); control-C ending
# redlock-exec and not the command, or the command and not the script around it; control-Z not
# giving the shell back, or costing the lock; a terminal staying with the group of the command; a
# command in the background taking the terminal; a command stopped for ever, perhaps with the lock,
# without a shell to continue the command.

use strict;
use warnings;

use ExecTest;
use PostgreSQL::Test::Utils;
use RedlockTest;
use Test::More;

BEGIN
{
	eval { require IO::Pty; 1 } or plan skip_all => 'no IO::Pty here';
	system('bash -c true') == 0 or plan skip_all => 'no bash here';
}

use POSIX ();

my @nodes = redis_nodes(3);
my $host = redlock_cluster('a', nodes => \@nodes, conf => "redlock.ttl = '2s'");
my $seen = '';
my $seen_before = ''; # before the last input
my ($pty, $started);

# Starts a command as the leader of a session, on a new terminal.
sub start_on_terminal
{
	my (@command) = @_;

	$pty = IO::Pty->new;
	$started = fork // die "fork: $!";
	if ($started == 0)
	{
		$pty->make_slave_controlling_terminal;
		my $slave = $pty->slave;
		untie *STDOUT;
		untie *STDERR;
		open STDIN,  '<&', $slave;
		open STDOUT, '>&', $slave;
		open STDERR, '>&', $slave;
		close $pty;
		exec @command or POSIX::_exit(99);
	}
	$pty->close_slave;
	$pty->blocking(0);
	$seen = '';
	return;
}

sub seen
{
	while (sysread $pty, my $bytes, 65536) { $seen .= $bytes; }
	return $seen;
}

# Types the text, and waits for the expected output.
sub type_in
{
	my ($text, $expected, $description) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	$seen_before = seen();
	$seen = '';
	syswrite $pty, $text;
	wait_until(sub { seen() =~ $expected }, $description) or diag($seen);
	return;
}

# Asks again and again: a shell tells of the state of a job only when asked.
sub ask_until
{
	my ($question, $expected, $description) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	$seen = '';
	wait_until(sub { syswrite $pty, $question; seen() =~ $expected }, $description) or diag($seen);
	return;
}

sub is_held
{
	my ($description) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	ok($host->poll_query_until('postgres',
			"SELECT count(*) = 1 FROM redlock_locks WHERE resource = 'job' AND state = 'held'"), $description);
	return;
}

$ENV{PS1} = 'prompt> ';
$ENV{RUN} = exec_program($host) . " -d \"" . $host->connstr('postgres') . '"';
start_on_terminal('bash', '--norc', '--noprofile', '--noediting', '-i');
wait_until(sub { seen() =~ /prompt> / }, 'a shell');
type_in("stty -echo; set +o history; echo set; run() { eval \"\$RUN job -- \$*\"; }\n", qr/^set\r.*prompt> /ms, 'without an echo');

# the terminal is handed over
type_in("run cat\nfirst\n", qr/^first\r/m, 'the command reads from the terminal');
is_held('the lock is held');
type_in("\cZ", qr/Stopped.*prompt> /s, 'control-Z gives the shell back');
type_in("echo here\n", qr/^here\r/m, 'the shell works');
ok($host->poll_query_until('postgres',
		"SELECT count(*) = 1 FROM redlock_locks WHERE resource = 'job' AND state = 'held' AND clock_timestamp() > since + 2 * ttl"),
	'the stopped job keeps the lock, for longer than its ttl');
type_in("fg\nsecond\n", qr/^second\r/m, 'fg: the command reads again');
type_in("\cD", qr/prompt> /, 'and comes to the end');
type_in("echo code \$?\n", qr/^code 0\r/m, 'with its exit code');

type_in("run cat\nfirst\n", qr/^first\r/m, 'the command reads again');
type_in("\cC", qr/prompt> /, 'control-C ends it');
type_in("echo code \$?\n", qr/^code 130\r/m, 'with the code of the signal');

type_in("x=\$(run cat); echo got \$x\n", qr/^/, 'in a command substitution');
is_held('the lock is held');
type_in("fifth\n\cD", qr/^got fifth\r.*prompt> /ms, 'the command reads, too');

my $script = beat_path('script');
append_to_file("$script.reads", "$ENV{RUN} job -- cat\necho NEXT LINE\n");
append_to_file("$script.sleeps", "$ENV{RUN} job -- sh -c 'echo first; exec sleep 1000'\necho NEXT LINE\n");
foreach my $case ([ reads => "first\n" ], [ sleeps => '' ])
{
	my ($command, $input) = @$case;

	foreach my $shell (qw(bash sh))
	{
		type_in("$shell $script.$command\n$input", qr/^first\r/m, "a command that $command, in a script of $shell");
		type_in("\cC", qr/prompt> /, 'control-C ends the command');
		type_in("echo code \$?\n", qr/^code 130\r/m, 'and the script');
		unlike($seen_before, qr/NEXT LINE/, 'before its next line');
	}
}

# the terminal is not handed over
type_in("run sleep 1000\n", qr/^/, 'a command that does not read');
is_held('holds the lock');
type_in("\cZ", qr/Stopped.*prompt> /s, 'control-Z gives the shell back');
type_in("fg\n", qr/sleep|RUN/, 'fg');
type_in("\cC", qr/prompt> /, 'control-C ends it');
type_in("echo code \$?\n", qr/^code 130\r/m, 'with the code of the signal');

# in the background
type_in("run cat &\n", qr/prompt> /, 'in the background');
is_held('it holds the lock');
type_in("\necho here\n", qr/here\r/, 'and leaves the terminal to the shell');
ask_until("jobs\n", qr/Stopped/, 'it is stopped, since it reads');
type_in("fg\nthird\n", qr/^third\r/m, 'fg: it reads');
type_in("\cD", qr/prompt> /, 'and comes to the end');
type_in("run cat | tr a-z A-Z\nfourth\n", qr/^FOURTH\r/m, 'in a pipeline');
type_in("\cD", qr/prompt> /, 'and comes to the end');

# a job in the background, after the end of its script: no shell could continue the job
append_to_file("$script.1", "$ENV{RUN} job -- sh -c 'read x </dev/tty' &\n");
type_in("sh $script.1\n", qr/no shell can continue it: hung up\r/, 'a command without a shell that wants the terminal');
ok($host->poll_query_until('postgres', 'SELECT count(*) = 0 FROM redlock_locks'), 'does not keep the lock');
wait_until(sub { session_count($host) == 0 }, 'nor the session');
append_to_file("$script.2", "$ENV{RUN} job -- sh -c 'trap : HUP; read x </dev/tty; read x </dev/tty' &\n");
type_in("sh $script.2\n", qr/hung up\r.*killed\r/s, 'a command that survives HUP and reads again');
ok($host->poll_query_until('postgres', 'SELECT count(*) = 0 FROM redlock_locks'), 'does not keep the lock');
type_in("echo here\n", qr/^here\r/m, 'the terminal stays with the shell');

type_in("exit\n", qr/exit/, 'the shell ends');
close $pty;
waitpid $started, 0;

# The front leads a session, as under "ssh -t" or in a container: no shell could continue the job.
start_on_terminal(exec_program($host), '-d', $host->connstr('postgres'), 'job', '--', 'cat');
type_in("first\n", qr/first\r.*first\r/s, 'a front without a shell: the command reads');
is_held('and holds the lock');
type_in("\cZ", qr/\^Z/, 'control-Z');
type_in("second\n", qr/second\r.*second\r/s, 'does not stop the command');
syswrite $pty, "\cC";
wait_until(sub { waitpid($started, POSIX::WNOHANG()) == $started }, 'control-C ends it');
is($? >> 8, 130, 'with the code of the signal');

is(session_count($host), 0, 'no session is left');

done_testing();
