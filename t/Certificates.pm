
=pod

=head1 NAME

Certificates - authorities and certificates for tests of TLS

=head1 SYNOPSIS

  use Certificates;

  my $authority = Certificates->new('ours');
  my $server    = $authority->issue('node');
  my $old       = $authority->issue('old', expired => 1);
  my $client    = $authority->issue('client', names => 'DNS:client');

An authority and its certificates, made by the B<openssl> command.

=head1 METHODS

=over

=item Certificates->new(name)

=item $authority->file

The certificate of the authority.

=item $authority->issue(name, options)

A hash with the paths B<cert>, B<key> and B<ca>, as for a node of RedlockTest.  Options:
B<names>, the names of the certificate, by default localhost and its addresses; B<expired>.

=back

=cut

package Certificates;

use strict;
use warnings;

use Carp;
use PostgreSQL::Test::Utils ();

my @new_key = qw(-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes);

sub new
{
	my ($class, $name) = @_;
	my $self = bless { name => $name, dir => PostgreSQL::Test::Utils::tempdir() }, $class;

	PostgreSQL::Test::Utils::append_to_file("$self->{dir}/index", '');
	PostgreSQL::Test::Utils::append_to_file("$self->{dir}/conf", <<END);
[ca]
default_ca = ours
[ours]
database = $self->{dir}/index
new_certs_dir = $self->{dir}
rand_serial = yes
unique_subject = no
default_md = sha256
policy = any
[any]
commonName = supplied
END
	$self->_openssl('req', '-x509', @new_key, '-subj', "/CN=$name", '-days', 10,
		'-keyout', "$self->{dir}/ca.key", '-out', $self->file);
	return $self;
}

sub file { return "$_[0]{dir}/ca.crt"; }

sub issue
{
	my ($self, $name, %options) = @_;
	my $path = "$self->{dir}/$name";

	PostgreSQL::Test::Utils::append_to_file("$path.ext",
		'subjectAltName = ' . ($options{names} // 'DNS:localhost,IP:127.0.0.1,IP:::1') . "\n");
	$self->_openssl('req', @new_key, '-subj', "/CN=$name", '-keyout', "$path.key", '-out', "$path.csr");
	$self->_openssl('ca', '-batch', '-notext', '-config', "$self->{dir}/conf", '-cert', $self->file,
		'-keyfile', "$self->{dir}/ca.key", '-startdate', '20200101000000Z', '-enddate',
		$options{expired} ? '20200102000000Z' : '20491231000000Z', '-extfile', "$path.ext",
		'-in', "$path.csr", '-out', "$path.crt");
	return { cert => "$path.crt", key => "$path.key", ca => $self->file };
}

sub _openssl
{
	my ($self, @command) = @_;
	my ($out, $err) = PostgreSQL::Test::Utils::run_command([ 'openssl', @command ]);

	croak "openssl @command: $err" if $? != 0;
	return;
}

1;
