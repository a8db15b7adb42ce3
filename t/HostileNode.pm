
=pod

=head1 NAME

HostileNode - a Redis node that misbehaves on command

=head1 SYNOPSIS

  use HostileNode;

  my $node = HostileNode->new(redis_node());
  my $a    = redlock_cluster('a', nodes => [$node, ...]);

  $node->obey(['^EVALSHA', 'say', '-READONLY not today\r\n']);
  $node->reform;    # a correct node again, with new connections

A proxy in front of a real node.  Rules are array references of a pattern, an action and
arguments, see test/hostile/hostile_node.  In front of a node with TLS, the rules are for
records of TLS.

=cut

package HostileNode;

use strict;
use warnings;

use Carp;
use IO::Socket::INET;
use POSIX ();
use RedlockTest;
use Time::HiRes qw(sleep time);

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;

my @all;

sub new
{
	my ($class, $redis) = @_;
	my $self = bless {
		redis => $redis,
		port  => PostgreSQL::Test::Cluster::get_free_port(),
		rules => PostgreSQL::Test::Utils::tempdir_short() . '/rules',
	}, $class;

	push @all, $self;
	$self->start;
	return $self;
}

sub start
{
	my ($self) = @_;

	$self->obey;
	my $pid = fork // croak "fork: $!";
	if ($pid == 0)
	{
		setpgrp;
		untie *STDOUT;
		untie *STDERR;
		open STDOUT, '>>', "$PostgreSQL::Test::Utils::log_path/hostile_$self->{port}.log";
		open STDERR, '>&', \*STDOUT;
		exec $^X, 'test/hostile/hostile_node', $self->{port}, $self->{redis}->port,
		  $self->{rules}, $self->{redis}{tls} ? 'tls' : ()
		  or POSIX::_exit(127);
	}
	$self->{pid} = $pid;

	my $end = time + $PostgreSQL::Test::Utils::timeout_default;
	until (IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $self->{port}))
	{
		croak 'the hostile node does not start'
		  if waitpid($pid, POSIX::WNOHANG()) == $pid || time > $end;
		sleep 0.02;
	}
	return;
}

# the name in redlock_nodes and in messages
sub address { return "127.0.0.1:$_[0]{port}"; }
sub url     { return ($_[0]{redis}{tls} ? 'rediss' : 'redis') . "://127.0.0.1:$_[0]{port}"; }

# the real node
sub redis { return $_[0]{redis}; }

sub obey
{
	my ($self, @rules) = @_;

	open my $file, '>', "$self->{rules}.new" or croak "$self->{rules}.new: $!";
	print $file join("\t", @$_), "\n" foreach @rules;
	close $file or croak "$self->{rules}.new: $!";
	rename "$self->{rules}.new", $self->{rules} or croak "$self->{rules}: $!";
	return;
}

# Number of connections that hang by a rule.
sub hung { return $_[0]->_notes('hung'); }

# Number of connections with a count of answers, by present or former rules.
sub counted { return $_[0]->_notes('counted'); }

sub _notes
{
	my ($self, $name) = @_;

	open my $file, '<', "$self->{rules}.$name" or return 0;
	return scalar(() = <$file>);
}

sub reform
{
	my ($self) = @_;
	$self->stop;
	$self->start;
	return;
}

# Kills the proxy and its children, one child for each connection.
sub stop
{
	my ($self) = @_;

	return unless $self->{pid};
	kill '-KILL', $self->{pid};
	waitpid $self->{pid}, 0;
	$self->{pid} = undef;
	return;
}

END
{
	my $exit_code = $?;

	$_->stop foreach @all;
	$? = $exit_code;
}

1;
