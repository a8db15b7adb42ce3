
=pod

=head1 NAME

ExecTest - runs of redlock-exec, and a command that tells how long it lived

=head1 SYNOPSIS

  use ExecTest;

  my $run = exec_start($host, [ '--ttl=2s', 'job' ], beats('log', 'TERM'));
  wait_until(sub { beat_log('log') =~ /^start/m }, 'the command runs');
  kill 'STOP', $run->keeper;
  is($run->code, 123, 'lost');
  my ($end_us) = last_beat_us('log');

All times are of CLOCK_BOOTTIME, in microseconds.

=cut

package ExecTest;

use strict;
use warnings;

use Carp;
use Exporter 'import';
use POSIX ();
use PostgreSQL::Test::Utils;
use RedlockTest;
use Test::More;
use Time::HiRes qw(sleep);

our @EXPORT = qw(exec_program exec_start exec_code beats beat_path beat_log last_beat_us begin_us stop_beats session_count);

# The caller may ignore signals, as nohup does, or a shell for a command in the background.
# redlock-exec and the commands would ignore these signals, too.
$SIG{$_} = 'DEFAULT' foreach grep { ($SIG{$_} // '') eq 'IGNORE' } qw(HUP INT QUIT TERM);

=pod

=head1 FUNCTIONS

=over

=item exec_program(cluster)

The path of redlock-exec.

=cut

sub exec_program
{
	my ($cluster) = @_;
	return $cluster->installed_command('redlock-exec');
}

=pod

=item exec_start(cluster, arguments, command, options)

Starts redlock-exec with the arguments, for the database postgres of the cluster.  Options:
B<stdin>, a path; B<ignore>, a signal that redlock-exec inherits as ignored; B<closed>, a
descriptor that redlock-exec inherits as closed; B<within>, a command that starts
redlock-exec.  Methods of the result:

=over

=item $run->pid, $run->keeper

The process ids of the front and of its keeper; without a keeper undef.

=item $run->done, $run->code

Tells whether the run has ended, without waiting; waits for the exit code, "signal N" after
an end by a signal.

=item $run->out, $run->err

The output of the run.

=back

=cut

my $directory = PostgreSQL::Test::Utils::tempdir();
my $count = 0;
my @all;

sub exec_start
{
	my ($cluster, $arguments, $command, %options) = @_;
	my $base = "$directory/run" . ++$count;
	my $self = bless { base => $base }, __PACKAGE__;
	my @words =
	  (@{ $options{within} // [] }, exec_program($cluster), '-d', $cluster->connstr('postgres'), @$arguments, $command ? ('--', @$command) : ());

	note "redlock-exec @$arguments -- ", $command ? substr("@$command", 0, 100) : '';
	$self->{pid} = fork // croak "fork: $!";
	if ($self->{pid} == 0)
	{
		untie *STDOUT;
		untie *STDERR;
		open STDIN,  '<', $options{stdin} // '/dev/null';
		open STDOUT, '>', "$base.out";
		open STDERR, '>', "$base.err";
		$SIG{PIPE} = 'DEFAULT';
		$SIG{ $options{ignore} } = 'IGNORE' if $options{ignore};
		POSIX::close($options{closed}) if defined $options{closed};
		delete $ENV{PGAPPNAME};
		exec @words or POSIX::_exit(99);
	}
	push @all, $self;
	return $self;
}

=pod

=item exec_code(cluster, arguments, command)

Runs redlock-exec to its end.  Returns the exit code.

=cut

sub exec_code { return exec_start(@_)->code; }

sub pid { return $_[0]{pid}; }
sub out { return slurp_file("$_[0]{base}.out"); }
sub err { return slurp_file("$_[0]{base}.err"); }

sub keeper
{
	my ($self) = @_;

	foreach my $process (glob '/proc/[0-9]*')
	{
		my $stat = eval { slurp_file("$process/stat") } // next;
		return $process =~ s/.*\///r if $stat =~ /\(redlock-keeper\) [^Z] $self->{pid} /;
	}
	return undef;
}

sub done
{
	my ($self) = @_;

	$self->{status} = $? if !defined $self->{status} && waitpid($self->{pid}, POSIX::WNOHANG()) == $self->{pid};
	return defined $self->{status};
}

sub code
{
	my ($self) = @_;
	my $end = time + $PostgreSQL::Test::Utils::timeout_default;

	until ($self->done)
	{
		croak "redlock-exec does not end: " . $self->err if time > $end;
		sleep 0.01;
	}
	note $self->err if -s "$self->{base}.err";
	return $self->{status} & 127 ? 'signal ' . ($self->{status} & 127) : $self->{status} >> 8;
}

=pod

=item beats(name, signals)

A command that writes the time again and again, and catches the signals.  stop_beats(name,
code) ends the command with the exit code.

=item beat_log(name)

Lines of the command: C<begin TIME>, C<start PID TOKEN>, and the names of caught signals.

=item begin_us(name), last_beat_us(name)

When the command began, and when it was last alive.

=item stop_beats(name, code)

=cut

my $beats = <<'PERL';
use strict;
use Time::HiRes qw(clock_gettime CLOCK_BOOTTIME sleep);
my ($base, @signals) = @ARGV;
sub now { return int(clock_gettime(CLOCK_BOOTTIME) * 1000000); }
open my $log, '>>', "$base.log" or die; $log->autoflush;
open my $beat, '>', "$base.beat" or die; $beat->autoflush;
foreach my $name (@signals) { $SIG{$name} = sub { print $log "$name\n" }; }
printf $log "begin %d\nstart %d %s\n", now(), $$, $ENV{REDLOCK_TOKEN};
until (-s "$base.stop")
{
	seek $beat, 0, 0;
	print $beat now();
	sleep 0.002;
}
open my $stop, '<', "$base.stop" or die;
exit <$stop>;
PERL

sub beat_path { return "$directory/beats_$_[0]"; }

sub beats
{
	my ($name, @signals) = @_;
	return [ $^X, '-MIO::Handle', '-e', $beats, beat_path($name), @signals ];
}

sub beat_log { return -e beat_path($_[0]) . '.log' ? slurp_file(beat_path($_[0]) . '.log') : ''; }
sub begin_us { return (beat_log($_[0]) =~ /^begin (\d+)/m)[0]; }
sub last_beat_us { return slurp_file(beat_path($_[0]) . '.beat'); }

sub stop_beats
{
	my ($name, $code) = @_;
	my $path = beat_path($name) . '.stop';

	append_to_file("$path.new", $code);
	rename "$path.new", $path;
	return;
}

=pod

=item session_count(cluster)

The number of sessions of redlock-exec at the cluster.

=back

=cut

sub session_count
{
	my ($cluster) = @_;
	return $cluster->safe_psql('postgres', "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'redlock-exec'");
}

# Kills the runs of a failed test.  The keeper ends with its front, and ends the command.
END
{
	my $exit_code = $?;

	foreach my $run (grep { !$_->done } @all)
	{
		my $keeper = $run->keeper;

		kill 'CONT', $keeper if $keeper;
		kill 'KILL', $run->{pid};
	}
	$? = $exit_code;
}

1;
