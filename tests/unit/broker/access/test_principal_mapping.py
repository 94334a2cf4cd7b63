"""``ssl.principal.mapping.rules``: what Kafka's SslPrincipalMapperTest requires, and what its code does besides."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualwrite.broker.access.principal_mapping import MappingRuleError, NoMatchingRuleError, PrincipalMapping

DUKE = "CN=Duke,OU=SME,O=mycp,L=Fulton,ST=MD,C=US"


@pytest.mark.parametrize(
    "rules",
    [
        "DEFAULT",
        "",
        "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/",
        "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L, DEFAULT",
        "RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/",
        "RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/L",
        "RULE:^cn=(.?),ou=(.?),dc=(.?),dc=(.?)$/$1@$2/U",
        "RULE:^CN=([^,ADEFLTU,]+)(,.*|$)/$1/",
        "RULE:^CN=([^,DEFAULT,]+)(,.*|$)/$1/",
    ],
)
def test_rules_of_kafkas_documentation_are_read(rules: str) -> None:
    assert PrincipalMapping(rules)


@pytest.mark.parametrize(
    "rules",
    [
        "default",
        "DEFAUL",
        "DEFAULT/L",
        "DEFAULT/U",
        "RULE:CN=(.*?),OU=ServiceUsers.*/$1",
        "rule:^CN=(.*?),OU=ServiceUsers.*$/$1/",
        "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L/U",
        "RULE:^CN=(.*?),OU=ServiceUsers.*$/L",
        "RULE:^CN=(.*?),OU=ServiceUsers.*$/U",
        "RULE:^CN=(.*?),OU=ServiceUsers.*$/LU",
        "DEFAULT, nonsense",
    ],
)
def test_a_malformed_rule_is_named(rules: str) -> None:
    with pytest.raises(MappingRuleError, match=r"is not DEFAULT or RULE:pattern/replacement/\[LU\]"):
        PrincipalMapping(rules)


@pytest.mark.parametrize(
    ("rules", "why"),
    [
        ("RULE:(/x/", "the pattern is not a regular expression: missing ), unterminated subpattern at position 0"),
        ("RULE:\\p{Alpha}/x/", "the pattern is not a regular expression: bad escape \\p"),
        ("RULE:.*/$1/", "the pattern has no group, so that $1 means nothing"),
        ("RULE:(.*)/${name}/", "the pattern has no group name"),
        ("RULE:(.*)/$x/", "$ is followed by no group; write \\$ for the character"),
        ("RULE:(.*)/$1$/", "$ is followed by no group"),
    ],
)
def test_a_rule_that_could_never_work_is_refused_at_once(rules: str, why: str) -> None:
    with pytest.raises(MappingRuleError, match=re.escape(why)):
        PrincipalMapping(rules)


SEVERAL = ", ".join(
    [
        "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L",
        "RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L",
        "RULE:^cn=(.*?),ou=(.*?),dc=(.*?),dc=(.*?)$/$1@$2/U",
        "RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/U",
        "DEFAULT",
    ]
)


@pytest.mark.parametrize(
    ("rules", "name", "principal"),
    [
        (SEVERAL, "CN=Duke,OU=ServiceUsers,O=Org,C=US", "duke"),
        (SEVERAL, DUKE, "duke@sme"),
        (SEVERAL, "cn=duke,ou=sme,dc=mycp,dc=com", "DUKE@SME"),
        (SEVERAL, "cN=duke,OU=JavaSoft,O=Sun Microsystems", "DUKE"),
        (SEVERAL, "OU=JavaSoft,O=Sun Microsystems,C=US", "OU=JavaSoft,O=Sun Microsystems,C=US"),
        ("RULE:^CN=((\\\\, *|\\w)+)(,.*|$)/$1/,DEFAULT", "CN=Tkac\\, Adam,OU=ITZ,DC=geodis,DC=cz", "Tkac\\, Adam"),
        # the whole name must match
        ("RULE:Duke/x/,DEFAULT", DUKE, DUKE),
        ("RULE:CN=Duke.*/x/,DEFAULT", DUKE, "x"),
        # every occurrence is replaced, an empty one at the end too, as by Java's replaceAll
        ("RULE:(a|b)+/[$1]/", "abab", "[b]"),
        ("RULE:.*/x/", "anything", "xx"),
        ("RULE:^.*$/x/", "anything", "x"),
        ("RULE:[a-z]*?/x/", "ab", "xaxbx"),
        # references
        ("RULE:^(.)(.)$/$2$1/", "ab", "ba"),
        ("RULE:^(.)(.)$/$0!/", "ab", "ab!"),
        ("RULE:^(.)(.)$/$12/", "ab", "a2"),
        ("RULE:^(.)(.)$/$1@$4/", "ab", "a@$4"),
        ("RULE:^(.)(.)$/$3$4/", "ab", "$3$4"),
        ("RULE:^(.)(.)$/$01/", "ab", "ab1"),
        ("RULE:^(?<first>.)(.)$/${first}/", "ab", "a"),
        ("RULE:^(.)(x)?(.)$/$1$2$3/", "ab", "ab"),
        # escapes
        ("RULE:^CN=(.*)\\/(.*)$/$1\\/$2/", "CN=a/b", "a/b"),
        ("RULE:^(.*)$/\\$1\\\\/", "a", "$1\\"),
        # case
        ("RULE:^(.*)$/$1X/L", "ÄB", "äbx"),
        ("RULE:^(.*)$/$1x/U", "äb", "ÄBX"),
        # empty rules are ignored, spaces around rules too
        (", ,DEFAULT,,", DUKE, DUKE),
        ("  RULE:^(.*)$/$1/L   ,   DEFAULT  ", "A", "a"),
        ("RULE:,RULE:,/x/,RULE:^a$/b/", "a", "b"),
        ("RULE://,DEFAULT", "", ""),
        # \w and \d are those of ASCII, as in Java
        ("RULE:^\\w$/x/,DEFAULT", "é", "é"),
    ],
)
def test_the_first_rule_that_matches_maps_the_name(rules: str, name: str, principal: str) -> None:
    assert PrincipalMapping(rules).name_of(name) == principal


@pytest.mark.parametrize("rules", ["", ",,", "RULE:x/y/"])
def test_a_name_that_no_rule_matches_has_no_principal(rules: str) -> None:
    with pytest.raises(NoMatchingRuleError, match=re.escape(f"matches its certificate {DUKE}")):
        PrincipalMapping(rules).name_of(DUKE)


@given(st.text(max_size=40))
def test_the_default_changes_no_name(name: str) -> None:
    assert PrincipalMapping("DEFAULT").name_of(name) == name


@given(st.text(alphabet="RULE:DEFAULT(.*)/\\$1{}, LU^", max_size=40), st.text(max_size=10))
def test_any_text_is_rules_or_refused(rules: str, name: str) -> None:
    try:
        mapping = PrincipalMapping(rules)
    except MappingRuleError as error:
        assert "\n" not in str(error)  # noqa: PT017 - or a mapping
        return
    try:
        assert isinstance(mapping.name_of(name), str)
    except NoMatchingRuleError:
        assert rules != "DEFAULT"
