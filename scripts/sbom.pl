#!/usr/bin/perl
# scripts/sbom.pl: print the bill of materials of the last commit, in SPDX 2.3
#
# META.json has name, version, licence and addresses.  docs/compatibility.md has the versions
# of the libraries.  test/unit/dist.t compares the list with the libraries that the Makefile
# links.

use strict;
use warnings;

use JSON::PP;
use POSIX qw(strftime);

# pattern: finds the version in docs/compatibility.md
my @libraries = (
	{ name => 'PostgreSQL', license => 'PostgreSQL', from => 'https://www.postgresql.org/',
		links => 'libpq', pattern => qr/^- PostgreSQL ([\d.]+) or later/m },
	{ name => 'hiredis', license => 'BSD-3-Clause', from => 'https://github.com/redis/hiredis',
		links => 'libhiredis, and for TLS, from 1.0 on, libhiredis_ssl',
		pattern => qr/^- hiredis ([\d.]+) or later/m },
	{ name => 'OpenSSL', license => 'Apache-2.0', from => 'https://www.openssl.org/',
		links => 'for TLS: libssl, libcrypto', pattern => qr/\bOpenSSL ([\d.]+) or later/ },
);

sub of_commit
{
	my ($path) = @_;
	my $content = qx(git show HEAD:$path);

	die "git does not show $path\n" if $? != 0;
	return $content;
}

my $meta = decode_json(of_commit('META.json'));
my $needs = of_commit('docs/compatibility.md');
my ($commit, $time) = split ' ', qx(git show -s --format='%H %ct' HEAD);
my $authors = $meta->{maintainer}[0] =~ s/ <.*//r;
my %whole = (
	SPDXID => 'SPDXRef-whole',
	name => $meta->{name},
	versionInfo => $meta->{version},
	description => $meta->{abstract},
	supplier => "Organization: $authors",
	downloadLocation => "git+$meta->{resources}{repository}{url}\@$commit",
	homepage => $meta->{resources}{homepage},
	filesAnalyzed => JSON::PP::false,
	licenseConcluded => 'PostgreSQL',
	licenseDeclared => 'PostgreSQL',
	copyrightText => of_commit('LICENSE') =~ s/\n.*//sr,
);
my @packages = (\%whole);
my @relations = ({
	spdxElementId => 'SPDXRef-DOCUMENT',
	relationshipType => 'DESCRIBES',
	relatedSpdxElement => $whole{SPDXID}
});

die "META.json has the license $meta->{license}\n" if $meta->{license} ne 'postgresql';
foreach my $library (@libraries)
{
	my ($version) = $needs =~ $library->{pattern}
	  or die "docs/compatibility.md does not tell the version of $library->{name}\n";

	push @packages,
	  { SPDXID => "SPDXRef-$library->{name}",
		name => $library->{name},
		versionInfo => ">= $version",
		comment => $library->{links},
		downloadLocation => $library->{from},
		filesAnalyzed => JSON::PP::false,
		licenseConcluded => $library->{license},
		licenseDeclared => $library->{license},
		copyrightText => 'NOASSERTION' };
	push @relations,
	  { spdxElementId => $whole{SPDXID},
		relationshipType => 'DYNAMIC_LINK',
		relatedSpdxElement => "SPDXRef-$library->{name}" };
}

print JSON::PP->new->canonical->pretty->encode({
	spdxVersion => 'SPDX-2.3',
	dataLicense => 'CC0-1.0',
	SPDXID => 'SPDXRef-DOCUMENT',
	name => "$meta->{name}-$meta->{version}",
	documentNamespace => "$meta->{resources}{homepage}spdx/$meta->{name}-$meta->{version}-$commit",
	creationInfo => {
		created => strftime('%Y-%m-%dT%H:%M:%SZ', gmtime $time),
		creators => [ "Organization: $authors", 'Tool: scripts/sbom.pl' ]
	},
	packages => \@packages,
	relationships => \@relations
});
