"""The words of withdrawals: which a sentence needs to be one, and which say nothing of a rule.

Lists only. The patterns that they stand in front of, and behind, are in `liftings`.
"""

import re

from proxy.compaction.ledger.sentences import stems

SCOPES = stems(
    "never always nunca jamás mai sempre siempre toujours jamais nie niemals immer nooit altijd"
    " nigdy zawsze никогда всегда asla zaman hiçbir under circumstances ever"
    " bitte lütfen proszę пожалуйста favor favore auf mit sur sobre con naar per directly straight"
    " don dont doesn cannot kein keine keinen keiner hagas hacer haga haz fazer faça faz faire fais"
    " fare machen mache mach doing uses usar usa usare utilizar verwende verwenden benutze benutzen"
    " utilise utiliser utilisez использовать используй użyj używać"
)
"""Words of a rule that say when and how it holds, not what it is about."""

CJK_FILLERS = re.compile(
    "关于|现在|已经|重新|再次|以后|可以|取消|忘记|忘掉|忘了|撤销|忽略|作废|不再|适用(?:され|し)?|有效|需要|不用"
    "|[的了请你我们也那这条个又再]"
    "|これから|今後|もう|しても|って|でも|いい|よい|です|ます|ません|ください|について|という|不要"
    "|必要|なくて|解除|禁止|廃止"
    "|適用(?:され|し)?|有効|忘れて|取り消|[のをはにがもし]"
    "|이제|다시|해도|됩니다|니다|하세요|더 이상|필요|[돼됩없]",
)
"""Parts of a withdrawal in dense scripts that do not say what it is about."""

_VERBS = """
    forget ignore ignored dropped drop lifted lift cancel cancelled revoke revoked withdraw
    withdrawn remove delete scrap scratch waive waived rescind retract undo disregard
    counts apply applies hold holds void hereby obsolete take taking back suspend ditch
    relax relaxed
"""
VERBS = stems(_VERBS)
"""Take a rule back; elsewhere they may be what a rule is about."""

_EMPTY_WORDS = """
    longer needed necessary required requirement requirements requires valid need needs want wants
    matter gone over off anymore any
    ended expired ends
    restrictions constraints instructions limitations limits limit thanks does has had did
    allow allows permit
    more never mind now again allowed permitted fine okay alright right free feel welcome after
    all every everything anything restriction constraint instruction limitation earlier previous
    asked told said says wrote was were from today onwards yes actually please directly straight
    whenever like thanks sure course thing things stuff bit part business request anyway already
    assistant you can may could able dont don't needn't too well then guys time just also both
    rules mandatory having consider have has been você voi usted ustedes jij ty ti lei abbia podem
    podéis let lets regarding concerning around with against for not that mentioned gave last
    vergiss gilt mehr nicht regel vorgabe aufgehoben darfst jetzt wieder hebe mit auf der die das
    ich gesagt habe zu wegen bezüglich über kannst nun doch erlaubt musst brauchst bitte verbot
    einschränkung länger ordnung für oublie règle applique plus peux pouvez maintenant annule
    nouveau désormais besoin sur consigne contrainte interdiction valable olvida regla puedes
    ahora anula sobre aplica tienes hace falta volver prohibición restricción dimentica regola
    vale più ora adesso puoi annulla sulla sul devi nuovo tornare divieto esqueça esquece
    regra agora pode mais voltar novamente precisa proibição mag weer nu voortaan vergeet niet
    meer geldt hoeft verbod możesz znowu znów już teraz ponownie wolno można zapomnij zasad reguł
    zakaz obowi musisz забудь правило про отменяю больше теперь можно можешь снова опять разрешено
    запрет нужно надо art\u0131k kural unut gerek geçerli değil iptal
    nehme ziehe streiche zurück zurückgenommen hiermit ignoriere müssen muss brauchen sein sind
    gestattet zulässig möglich erlaubte sont autorisé autorisée autorisées permis otra vez vuelve
    vuelven volver estar está están permitido permitida permitidos permitidas autorizado de nuevo
    sono permesso permesse permessi consentito estão novo permitidas liberado liberada liberadas
    liberados autorizada autorizadas stop quit weer toegestaan dozwolone hinfällig gültig retire
    retiro reglas regeln règles regras разрешена разрешены разреш\u0451н разрешен действует нельзя
    правила отмени отменяется забудь
"""
WORDS = frozenset(_EMPTY_WORDS.split())
"""Words of a withdrawal that do not say what it is about."""

_TRIGGER_WORDS = """
    forget lift lifted lifting drop dropped dropping cancel canceled cancelled revoke revoked
    withdraw
    withdrawn remove scrap scratch strike waive waived rescind rescinded retract retracted undo
    ignore
    disregard delete longer void overrule suspend abandon ditch relax nevermind anymore allowed
    permitted
    welcome needn obsolete moot mandatory
    vergiss gilt gelten mehr aufgehoben hebe nehme ziehe streiche ignoriere darfst kannst oublie
    oubliez
    plus annule annulez peux pouvez olvida ya anula cancela retiro queda ahora puedes puede
    dimentica
    annulla annullo scorda lascia ora adesso puoi esquece agora pode cancele revogo
    mag mogen kunt weer voortaan geldt vergeet opgeheven vervallen hoeft
    zapomnij anuluj teraz znowu unut iptal unutun brauchst musst wieder vale sont vuelve vuelven
    sono stop quit retire retiro erlaubt gestattet ended expired permitido permitida permitidos
    permitidas toegestaan
"""
TRIGGERS = frozenset(_TRIGGER_WORDS.split())
"""Words of which a withdrawal in unaccented letters has one, or a pair of those below."""

ROOTS = re.compile(
    r"\b(?:gültig|zurückge|hinfällig|passé|lève|levée|olvíd|está|estão|esqueç|revog|já"
    r"|não (?:vale|se aplica"
    r"|conta|precisa)|możesz|można|już"
    r"|zniesion|anul|cofnię|забудь|отмен|сним|снят|отзыва|больше|можно|можешь|теперь|разреш|действу"
    r"|art\u0131k|kald\u0131r|geçerli|unut)"
    "|忘|取消|撤|废|忽略|不再|可以|不用|无需|不必|取り消|解除|廃止|無視|もう|いい|よい|適用|必要|構"
    "|大丈夫"
    "|잊어|취소|철회|해제|무시|더 이상|돼|됩|된|좋|괜찮|필요"
)
"""The same for other letters: how one of its words begins."""

PAIRS = tuple(
    (frozenset(one.split()), frozenset(other.split()))
    for one, other in (
        ("can may could", "again now after whenever anytime once time"),
        ("fine ok okay alright right free", "is are it its i feel again to"),
        ("need have", "no don dont any not"),
        ("over off gone required", "rule rules ban freeze restriction requirement policy not"),
        ("mind take any apply hold", "never back more"),
        ("more", "no rule rules ban limit restriction"),
    )
)
"""Words of which one must stand beside one of the others, and be it anywhere."""
_ANY = TRIGGERS.union(*(one for one, _ in PAIRS))


def may_lift(words: list[str]) -> bool:
    """Tell by its words whether a sentence needs to be looked at."""
    if _ANY.isdisjoint(words):
        return False
    if not TRIGGERS.isdisjoint(words):
        return True
    return any(not (a.isdisjoint(words) or b.isdisjoint(words)) for a, b in PAIRS)
