#!/usr/bin/perl
#
# plant.pl NAME: break the sources in the working directory by an entry of planted.txt; print
# the entry's mode and model
#
# test/chaos/run --planted calls the program in the private copy of the sources.
use strict;
use warnings;

use FindBin qw($Bin);
use lib "$Bin/../sim";
use Mutants;

@ARGV == 1 or die "usage: $0 NAME\n";
my ($planted) = grep { $_->{name} eq $ARGV[0] } read_mutants("$Bin/planted.txt");
die "no planted violation has the name $ARGV[0]\n" unless defined $planted;
foreach my $key (qw(mode finds))
{
	die "$planted->{name}: no $key\n" unless ($planted->{$key} // '') =~ /^\w+$/;
}
my %text = edited($planted);
write_file($_, $text{$_}) foreach keys %text;
system('perl scripts/lua_text.pl >lua_text.new && mv lua_text.new src/protocol/lua_text.c') == 0 or die "lua_text.pl failed\n"
  if grep { /\.lua$/ } keys %text;
print "$planted->{mode} $planted->{finds}\n";
