"""How people word that a rule no longer holds, in the languages they mostly write.

Patterns only, for sentences in small letters with straight apostrophes.
"""

import re

NAMES = re.compile(
    r"\b(?:rules?|constraints?|restrictions?|requirements?|instructions?|preferences?"
    r"|limit(?:ation)?s?|bans?|freezes?|embargo|moratorium|polic(?:y|ies)|prohibitions?|guidelines?"
    r"|conventions?"
    r"|(?:what|everything|anything|all|as) (?:i|we)(?:'ve| have| had)? (?:said|asked|told|wrote)"
    r"(?: you)?"
    r"|thing|business|stuff"
    r"|regel\w*|vorgaben?|verbots?|einschränkung\w*|anweisung\w*|was ich (?:zu|über|von|gesagt)"
    r"|r[èe]gles?|contraintes?|consignes?|interdictions?|ce que j'ai dit"
    r"|reglas?|restricci[oó]n\w*|prohibici[oó]n\w*|lo que dije|lo de"
    r"|regol[ae]|vincol[oi]|diviet[oi]|quello che ho detto"
    r"|regras?|restriç\w+|proibiç\w+|o que (?:eu )?disse|regels?|afspraak|verbod"
    r"|zasad\w*|reguł\w*|zakaz\w*|правил\w*|ограничени\w*|запрет\w*|требовани\w*"
    r"|kural\w*|yasa[kğ]\w*|k\u0131s\u0131tlama\w*)\b"
    "|规则|要求|限制|约定|规定|禁令|ルール|制約|規則|指示|規定|규칙|제약|지시|요구",
)
"""What a sentence names that takes a rule back."""

_COMMAND = (
    r"(?:^|[,;:(\u2014]\s*|\b(?:please|pls|ok(?:ay)?|so|and|then|now|just|also|actually|you can"
    r"|you may|let's|lets|let us|we can|we|i|i'll|i hereby|i'd like to|i want to|feel free to"
    r"|bitte|ich|wir|je|s'il te plaît|por favor|per favore|yo|io|eu|я|пожалуйста|oh|yes|right"
    r"|alright|hey|well)\s+)\W*"
)
LIFTS = re.compile(
    _COMMAND + r"(?:forget|lift|revoke|withdraw|scratch|waive|rescind|retract"
    r"|overrule|take back|never ?mind|no longer (?:need|want)|am (?:lifting"
    r"|dropping|withdrawing|revoking)|(?:do not|don't) (?:need|follow|apply) (?:that|this|the|my)"
    r"|vergiss|hebe|nehme|ziehe|streiche|ignoriere?|oublie[zr]?|annule[zr]?|retire|lève[zr]?"
    r"|olvida\w*|olvídate|anula\w*|cancela\w*|retiro|ignora|dimentica\w*|annull\w+|scorda\w*"
    r"|lascia perdere|esqueç\w+|esquece|cancele|revogo|ignore|vergeet|negeer|zapomnij\w*"
    r"|anuluj\w*|забудь\w*|отмен\w+|снима\w+|отзыва\w+|unut\w*)\b"
    r"|\b(?:unut|iptal|kald\u0131r)\w*\W*$"
    "|忘记|忘掉|忘了|取消|撤销|撤回|废除|忽略|忘れて|取り消|撤回|解除|廃止|無視して|잊어|취소|철회"
    "|해제|무시해",
)
"""Takes back what it names; said as a command, or by the one who takes it back."""

DELETES = re.compile(
    _COMMAND + r"(?:drop|ignore|disregard|cancel|scrap|remove|undo"
    r"|delete|suspend|abandon|ditch|relax)\b"
)
"""Takes back a rule, or is a task about the rules of a program."""

SPOKEN = re.compile(
    r"\b(?:rules?|restrictions?|requirements?|constraints?|bans?|polic(?:y|ies)|instructions?)"
    r" (?:about|against|of not|not to|that (?:you|we|i)|to (?:always|never|not)|from (?:before"
    r"|earlier|above))\b|\b(?:my|our|earlier|previous|that|said|told|asked)\b(?!.*\bfrom the\b)"
    r"|\b(?:drop|ditch|abandon) the (?:no-)?[\w-]+ (?:thing|bit|part|business)\b"
    r"|\bthe no[- ](?:[\w-]+ ){1,3}(?:rule|polic(?:y|ies)|restriction)s?\b",
)
"""Speaks of a rule as something said, not as a part of a program."""

LIFTED = re.compile(
    r"\bno longer (?:applies|apply|holds?|valid|in (?:force|effect|place)|counts?)\b"
    r"|\bnot (?:valid|in (?:force|effect)) any ?more\b|\b(?:doesn't|does not|don't|do not) (?:apply"
    r"|hold|count"
    r"|matter) (?:any ?more|any longer)\b|\bgilt (?:\w+ ){0,3}nicht (?:mehr|länger)\b|\bgelten"
    r" (?:\w+ ){0,3}nicht mehr\b|\bne (?:s'applique|vaut|compte|tient|s'appliquent) plus\b"
    r"|\bn'est plus (?:valable|valide|en vigueur)|\bya no (?:aplica|vale|rige|se aplica|cuenta)"
    r"|\bqueda\w* sin efecto\b|\bnon (?:vale|si applica|conta) più\b|\bnão (?:vale|se aplica|conta)"
    r" mais\b|\bgeldt niet meer\b|\bjuż nie obowiązuj\w+|\bnie obowiązuj\w+ już|больше не (?:действ"
    r"|нужн|применя)\w*|\bн\u0435 действует\b|\b(?:art\u0131k )?geçerli değil\b"
    "|不再(?:适用|有效|需要)?|作废|适用しません|適用されません|もう不要|더 이상 (?:적용|필요|유효)",
)
"""Says that something no longer holds."""

ENDED = re.compile(
    r"\b(?:has|have) (?:ended|expired)\b|^\W*no more (?:[\w-]+ ){1,3}(?:rules?|restrictions?|bans?"
    r"|limits?|polic(?:y|ies))\b|"
    r"\b(?:is|are|was|were|has been|have been|be|i've|consider\w* (?:it|that)?) (?:now |hereby"
    r" |all )*(?:lifted|dropped|cancell?ed|revoked|withdrawn|void|gone|over|off|obsolete|moot"
    r"|history|waived|rescinded|retracted|no longer needed|no longer required)\b"
    r"|\b(?:aufgehoben|zurückgenommen|zurückgezogen|hinfällig|passé|nicht mehr nötig)\b"
    r"|\best (?:levée?|annulée?|abrogée?)\b|\b(?:está|queda) (?:anulad|cancelad|levantad)\w+"
    r"|\bè (?:annullat|revocat|sospes)\w+|\b(?:está|foi) (?:cancelad|revogad|anulad)\w+"
    r"|\b(?:opgeheven|vervallen|ingetrokken)\b|\b(?:zniesion|anulowan|cofnięt)\w+"
    r"|\b(?:отмен[её]н|снят)\w*",
)
"""Says of a rule that it has ended."""

BAN_DROPPED = re.compile(_COMMAND + r"(?:forget|never ?mind) (?:about )?not \w+ing\b")
"""Takes back a prohibition by saying what it forbade."""

POINTS = re.compile(
    r"\W*(?:(?:ok(?:ay)?|oh|no|wait|hm+|actually|sorry|please|and|so)\b\W*){0,3}(?:scratch"
    r"|strike|forget|ignore|never ?mind|disregard|cancel) (?:that|this|it)(?: last one"
    r"| again| please)?\s*(?:$|[.!,;:])"
    r"|\W*(?:vergiss (?:das|es)|oublie ça|olvida eso|olvídalo|lascia stare|esqueça isso"
    r"|esquece isso|vergeet (?:dat|het)|zapomnij o tym|забудь(?: \u043e\u0431 этом)?)\s*(?:$"
    r"|[.!,;:])",
)
"""Takes back what was said just before."""

_YOU = r"\b(?:you|u|the assistant|we|anyone|everyone)"
PERMITTED = re.compile(
    _YOU + r"(?: guys)?(?:'re| are)? (?:can|may|could|allowed to|free to|welcome to)\b"
    r"[^,;]*\b(?:now|again|after all|from now on|any ?time|whenever|as you like)\b"
    + r"|\bnow (?:you|we|u) (?:can|may|are allowed|are free)\b"
    + r"|"
    + _YOU
    + r"(?:'re| are) (?:now |again )(?:allowed|free|welcome) to\b"
    r"|" + _YOU + r" (?:can|may) (?:now|again|from now on)\b"
    r"|\bfeel free to\b|\byou (?:can|may)\b.*\b(?:just this once|this once|this time)\b|\b(?:it's"
    r"|it is|its|i'm|i am) (?:now )?(?:fine|ok|okay|allowed|permitted"
    r"|all right|alright) (?:again )?(?:for you )?(?:now )?(?:to|with you)\b"
    r"|\b\w+ing\b[^,;]{0,80} (?:is|are) (?:now |again )?(?:allowed|permitted|fine|ok|okay)\b"
    r"|\b(?:is|are) (?:(?:now|again) (?:allowed|permitted)|again (?:fine|ok|okay))\b|\b(?:is|are)"
    r" (?:allowed|permitted|fine|ok|okay) (?:again|after all|from now on)"
    r"\b|\b(?:is|are) (?:allowed|permitted) now\b"
    r"|\bmay [^,;]*\b(?:again|from now on)\b"
    r"|\b(?:from now on|starting now|as of (?:now|today)),? (?:you|we|u) (?:can|may)\b"
    r"|\bno longer (?:off[- ]limits|forbidden|prohibited|banned|frozen|taboo|restricted)\b"
    r"|\b(?:du )?(?:darfst|kannst) (?:\w+ ){0,2}(?:jetzt|wieder|nun|ab (?:jetzt|sofort)|doch)\b"
    r"|\b(?:jetzt|nun|ab jetzt) (?:darfst|kannst) du\b|\b(?:ist|sind) (?:jetzt|wieder|nun"
    r"|ab jetzt|ab"
    r" sofort)"
    r" (?:erlaubt|ok|okay|in ordnung|gestattet|zulässig|möglich)\b"
    r"|\b(?:est|sont) (?:de nouveau|à nouveau|désormais|maintenant) (?:autoris|permis)\w*"
    r"|\b(?:vuelven?|vuelto) a estar (?:permitid|autorizad)\w+|\best(?:á|án) (?:de nuevo|otra vez"
    r"|ahora|ya) (?:permitid|autorizad)\w+|\best(?:á|án) (?:permitid|autorizad)\w+ (?:de nuevo|otra"
    r" vez)\b|\b(?:è|sono) (?:di nuovo|ora|adesso) (?:permess|consentit|autorizzat)\w+"
    r"|\best(?:á|ão) (?:de novo |novamente |agora )?(?:permitid|autorizad|liberad)\w+"
    r"|\b(?:mogen|mag|zijn|is) (?:\w+ ){0,2}(?:weer|nu) (?:toegestaan|toegelaten)\b"
    r"|\b(?:jest|są) (?:znowu|znów|już|ponownie) dozwolon\w+"
    r"|\b(?:tu peux|vous pouvez|on peut) (?:maintenant|désormais|à nouveau|de nouveau|enfin)\b"
    r"|\bmaintenant (?:tu peux|vous pouvez)\b"
    r"|\b(?:ahora|ya) (?:sí )?(?:puedes|se puede|podéis|pueden)\b|\bpuedes (?:ahora|volver a|ya)\b"
    r"|\b(?:ora|adesso) (?:puoi|si può|potete)\b|\bpuoi (?:ora|adesso|di nuovo|tornare a)\b"
    r"|\b(?:agora|já) (?:você )?pode\w*\b|\b(?:você )?pode (?:agora|voltar a|novamente)\b"
    r"|\b(?:je|jullie|u) (?:mag|mogen|kunt|kan) (?:\w+ ){0,2}(?:nu|weer|voortaan)\b"
    r"|\bnu (?:mag|kan) je\b"
    r"|\bmożesz (?:teraz|znowu|znów|już|ponownie)\b|\b(?:teraz|już) (?:możesz|wolno|można)\b"
    r"|\b(?:теперь|снова|опять) (?:можно|можешь|разреш[её]н\w*)\b|\b(?:можно|можешь|разреш[её]н\w*)"
    r" (?:теперь|снова|опять)\b|\bart\u0131k\b.*\w+(?:abilirsin|ebilirsin)\w*"
    "|(?:现在|已经|又|重新|以后)可以|可以(?:再次|重新)"
    "|(?:しても|っても|でも)(?:いい|よい|構|大丈夫)|(?:해도|어도|아도|여도) ?(?:돼|됩|좋|된|괜찮)",
)
"""Says that something may be done (again)."""

RELIEVED = re.compile(
    r"\b(?:you|u|the assistant) (?:no longer (?:need to|have to|must|are required)"
    r"|(?:don't|do not|dont) (?:need to|have to))\b"
    r"|\b(?:we|i) no longer (?:need (?:you )?to|have to|must|prefer|want|require|insist)\b"
    r"|\b(?:we|i) (?:don't|do not) (?:need (?:you )?to|have to|require|insist)\b.*\b(?:any ?more"
    r"|any longer)\b|\bno (?:more )?need (?:to|for)\b.*\b(?:any ?more|any longer|now)\b"
    r"|\byou (?:can|may) (?:now )?(?:stop|quit) \w+ing\b|\byou needn't\b|\b(?:is"
    r"|are) (?:no longer|not) (?:required|mandatory|obligatory)\b(?! to)"
    r"|\bno longer (?:needs?|ha(?:s|ve)) to\b|\b(?:don't|do not|doesn't|does not) (?:need"
    r"|have) to\b"
    r"[^,;]*\b(?:any ?more|any longer)\b|^\W*(?:(?:please|ok|okay|now) )*(?:stop|quit) (?!the\b)"
    r"\w+ing\b"
    r"|\b(?:muss|müssen|musst|brauchst|braucht|brauchen) (?:\w+ ){0,6}nicht mehr\b"
    r"|\b(?:tu n'as|vous n'avez) plus (?:besoin"
    r"|à)\b|\bya no (?:tienes que|hace falta|es necesario|necesitas|hay que)\b"
    r"|\bnon (?:devi|serve|è necessario|occorre|bisogna) più\b|\b(?:você )?não precisa mais\b"
    r"|\bje hoeft (?:\w+ ){0,6}niet meer\b|\bnie musisz już\b|\bjuż nie musisz\b"
    r"|\b\u0431\u043eльш\u0435 не (?:нужно|надо|обязательно)\b|\bart\u0131k\b.*\bgerek(?:mez|miyor"
    r"|li değil)?\b"
    "|不用再|无需再|不必再|もう.{0,20}(?:必要はありません|なくていい|なくてもいい)|더"
    " 이상.{0,20}(?:않아도|필요 ?없)",
)
"""Says that something need not be done any more."""

NOT_NEEDED = re.compile(
    r"\b(?:no longer (?:needed|necessary|required|wanted)|not (?:needed|required|necessary)"
    r" any ?more|(?:we|i|they) (?:don't|do not) (?:need|have) to|no need (?:to|for)|doesn't matter"
    r"|nicht mehr (?:nötig|erforderlich|notwendig)|plus (?:nécessaire|besoin)"
    r"|ya no es|não é mais|non è più|niet meer nodig|już niepotrzebn\w+)\b|必要はありません|필요"
    r" ?없",
)
"""The same, said of a thing or in general, which may mean something else."""

OPPOSITE = re.compile(
    r"\b(?:do not|don't|dont|never|not|mustn't|must not|can't|cannot|didn't|did not|without|nobody"
    r"|stop|stopped|keep) (?:ever |just |simply |been |be |yet )*(?:forget\w*|ignor\w+"
    r"|drop\w*|lift\w*|cancel\w*|revok\w+|withdraw\w*|remov\w+|waiv\w+|disregard\w*|over|gone"
    r"|void|rescind\w*)\b"
    r"|\b(?:you|u|it|he|she|they|the (?:assistant|bot|model))(?:'ve| have| had|'re| are)?"
    r" (?:just |simply |clearly |already |still |keep |kept |again |always |totally )*(?:forgot\w*"
    r"|ignor\w+|dropp\w+|violat\w+|broke\w*|disregard\w+|forgetting)\b"
    r"|\b(?:you|u|we|anyone|nobody|assistant) (?:can|may|could|must|should|shall|will|do|are)"
    r" ?(?:not"
    r"|never|n't|only|no longer)\b(?! (?:need|have|required?|obliged))"
    r"|\b(?:nobody|no one|none) (?:may|can|could|should)\b"
    r"|\b(?:you|we|u|nobody|anyone) (?:can't|cannot|mustn't|mayn't|shouldn't|couldn't|won't|aren't"
    r"|only|never)\b"
    r"|\b(?:no|only|never|nothing|none|neither|nobody|no one) (?:[\w'/.-]+ ){0,6}(?:is|are|may be"
    r"|can be) (?:ever |now |still )?(?:allowed|permitted|fine|ok|okay)\b"
    r"|\b(?:not|never|nor|n't|no longer|isn't|aren't|only) (?:be )?(?:allowed|permitted|fine|ok"
    r"|okay)\b"
    r"|\b(?:can|may|could) (?:now |again )?(?:see|tell|notice|imagine|guess|hear|understand)\b"
    r"|\bas if (?:you|we)\b|\b(?:not|n't) mean\b|\bnever (?:said|meant|told|allowed)\b|\b(?:not"
    r"|n't) (?:say|said|tell)\b"
    r"|\bstill (?:applies|apply|holds?|stands?|in force|valid)\b|\b(?:before|until|unless) (?:you"
    r"|it's|it is)\b.*\b(?:may|can|ok|okay|fine|allowed)\b|\bnot (?:yet )?(?:lifted|over|gone)\b"
    r"|\b(?:not|n't|never)\b[^,;]{0,40}\bfeel free\b"
    r"|\bvergiss (?:\w+ ){0,6}nicht\b|\bnicht (?:vergessen|ignorieren)\b|\b(?:darfst|kannst|darf)"
    r" (?:\w+ ){0,4}(?:nicht|nie|nur|kein\w*)\b(?! mehr)|\bn'oublie|\bne (?:peux|pouvez|peut)\b"
    r"|\bno (?:te )?(?:olvid|anul|cancel|puede|se puede|podéis)\w*|\bnon (?:dimentic|scord|puoi|si"
    r" può)\w*|\bnão (?:se )?(?:esque|cancel|pode)\w*|\bvergeet (?:\w+ ){0,4}niet\b|\b(?:mag|mogen)"
    r" (?:\w+ ){0,4}(?:niet|geen|nooit|alleen)\b|\bnie (?:zapomin|zapomn|możesz|wolno|można)\w*"
    r"|\bн\u0435 (?:забу|забывай|можешь|разреш|отмен)\w*|\bн\u0435льзя\b|\bunutma\w*"
    r"|\b(?:no|não|non|ne|nie|niet|nicht|не)\b[^,;.]{0,20}\b(?:permitid|autorizad|autoris|permis"
    r"|liberad"
    r"|permess|consentit|dozwolon|разреш|toegestaan|erlaubt|gestattet)"
    r"|\bseulement si\b|\bsolo se\b|\bsolo si\b"
    "|别忘|不要忘|勿忘|不能忘|不可以|忘れない|ないで|てはいけ|잊지|안 ?돼|안 ?됩|하지 ?마",
)
"""Looks like a withdrawal and is its opposite, or a complaint that a rule was broken."""

TENTATIVE = re.compile(
    r"(?<!\bi )(?<!\bwe )\b(?:says?|said|wrote|writes|claims?|reads?|shows?|prints?|displays?)\b"
    r"|\b(?:if|once|unless|when|as soon as|as long as|provided|in case|until|after (?!all\b)|for"
    r" now"
    r"|just this|this (?:one|once|time)|one[- ](?:time|off)|(?<!-)only|except\w*|apart from"
    r"|for (?:this"
    r"|that|the next|one|today)|today|tonight|tomorrow|maybe|perhaps|probably|might|i (?:think"
    r"|guess|wish|suppose)|imagine|would|some ?times|temporarily|wenn|falls|sobald|solange|einmal"
    r"|diesmal"
    r"|ausnahmsweise|heute|vielleicht|nur|si (?!può|applica)|quand|dès que|cette fois|une fois"
    r"|aujourd'hui|seulement"
    r"|peut-être|cuando|esta vez|una vez|por hoy|quizás?|solo|sólo|quando|questa volta"
    r"|per oggi|forse|desta vez|talvez|apenas|als|zodra|deze keer|vandaag|alleen|misschien"
    r"|jeśli|gdy|kiedy|tym razem|dzisiaj|tylko|może|если|когда|как только|в этот раз|один раз"
    r"|сегодня|только|eğer|bu sefer|sadece)\b|如果|这次|这一次|暂时|仅|もし|今回|場合|만약|이번"
    r"|오늘만",
)
"""Makes a withdrawal conditional, temporary, doubtful or an exception."""

BUT = re.compile(
    r"\b(?:but|though|although|aber|jedoch|(?<!vale )(?<!aplica )(?<!conta )(?<!precisa )mais"
    r"|pero|ma|mas|maar|ale|но|ama)\b|但是?|でも、|하지만"
)
"""What follows it is another matter."""

ALL = re.compile(
    r"\b(?:all|every|everything|any|alle|alles|sämtliche|toutes?|tous|tout|todas?|todos|todo|tutte"
    r"|tutti|tutto|wszystk\w+|все|всё|tüm|bütün)\b|所有|全部|すべて|全て|全部|모든|전부"
)
OWN = re.compile(
    r"\b(?:my|our|i (?:said|asked|told)|we (?:said|agreed)|meine\w*|unsere\w*|mes|nos|mis|nuestras"
    r"|mie|nostre|minhas|nossas|mijn|moje|мои)\b|我的|我说|私の|내"
)
"""Speaks of the author's own rules; the rest may be an injected phrase."""

THIS = re.compile(
    r"\b(?:that|this|last|previous|earlier|above|diese|letzte|cette|esa|esta|questa|quella|essa"
    r"|dit|deze|tę|tej|это|эту|bu)\b|这|那|その|この|그|이"
)
"""Points at one rule."""

SEVERAL = re.compile(
    r"\b(?:what (?:i|we)|everything|anything|all|both|rules|restrictions|constraints|regeln|règles"
    r"|reglas|regole|regras|beide)\b|所有"
)
"""May mean more than one rule."""

RESTRICTS = re.compile(
    r"\b(?:never|not|no|none|don't|dont|do not|cannot|can't|mustn't|shouldn't|won't|only|avoid|ask"
    r"|before|until|without|unless|wait|alone|hands off|off[- ]limits|read[- ]only|forbid\w*"
    r"|forbidden|prohibit\w*|bann?e?d?|disallow\w*|refrain|stop|freeze|frozen|stay (?:out|away|off)"
    r"|keep (?:away|out|off)|untouched|nothing|nobody|exclusively|instead of|rather than|limit\w*"
    r"|restrict\w*|nevr|skip|leave"
    r"|nicht|nie|niemals|kein\w*|nur|verboten|vermeide\w*|bevor|ohne|erst|finger weg|ausschließlich"
    r"|ne|pas|jamais|aucun\w*|interdit\w*|seulement|uniquement|sans|évite\w*|avant"
    r"|nunca|jamás|sin|solo|sólo|prohibid\w*|evita\w*|antes|non|mai|senza|soltanto|vietato|prima"
    r"|não|sem|só|apenas|somente|proibid\w*|evite|niet|nooit|geen|alleen|zonder|verboden|voordat"
    r"|nie|nigdy|bez|tylko|zakaz\w*|не|никогда|нельзя|только|без|запрещ\w*|запрет\w*"
    r"|asla|hiçbir|yasak|sadece|yaln\u0131z\w*|olmadan|\w+(?:may\u0131n|meyin))\b|\bn'"
    "|不|勿|禁|别|只|仅|先|莫|ない|禁|だけ|のみ|控え|말|마세|마십|마라|금지|않|만 ",
)
"""Forbids something, or ties it to a condition."""

FORBIDS = re.compile(
    r"\b(?:never|not|no|don't|dont|cannot|can't|mustn't|avoid|forbid\w*|prohibit\w*|stop|refrain"
    r"|untouched"
    r"|nicht|nie|niemals|kein\w*|verboten|vermeide\w*|pas|jamais|aucun\w*|interdit\w*|évite\w*"
    r"|nunca|jamás|prohibid\w*|evita|non|mai|vietato|não|proibid\w*|evite|niet|nooit|geen|nigdy"
    r"|никогда|не|нельзя|запрещ\w*|asla|hiçbir|yasak)\b|不|勿|禁|别|莫|ない|禁|말|마세|금지|않",
)
"""Forbids something."""

DEMANDS = re.compile(
    r"\b(?:ask|before|until|without|unless|wait|confirm\w*|approv\w*|always|every|each|must (?!not)"
    r"|first|frag\w*|bevor|ohne|demande\w*|avant|sans|pregunta\w*|antes|sin|chied\w*|prima|senza"
    r"|pergunt\w*|sem|vraag|voordat|zonder|pyta\w*|zanim|bez|спрашив\w*|спроси\w*|перед|без|sor)\b"
    "|先|问|前に|確認|전에",
)
"""Demands something, whatever it may forbid besides."""

JOINED = re.compile(
    r"\b(?:or|and|nor|und|oder|ou|et|y|o|e|lub|oraz|и|или|ve|veya)\b|[、和或及]|그리고|또는"
)
"""Joins things of which one alone may be taken back."""

CONTRAST = re.compile(
    r"\b(?:instead of|rather than|statt|au lieu de|plutôt que|en lugar de|en vez de|invece di"
    r"|em vez de|in plaats van|zamiast|вместо|yerine)\b|而不是|代替|の代わり|대신"
)
"""Sets what is forbidden against what is demanded in one breath."""

PREFACE = re.compile(
    r"^\W*(?:ok(?:ay)?|actually|sorry|wait|on second thought|i(?:'ve| have)? changed my mind"
    r"(?: (?:about|on) [^,:;]{1,40})?)\W+"
)
"""Comes before a withdrawal, and is none."""

IN_FORCE = re.compile(r"\bin (?:force|effect|place)\b")

NUMBERED = re.compile(r"\b(?:rule|regel|r[èe]gle|regla|regola|regra|правило)\W{1,3}(\d+)\b")
"""Names a rule by its number."""

OTHERS = re.compile(r"^\W*(.{1,60}?)\bmay\b(?! be\b)")
"""Says who may do something; its first group."""

FORGETS = re.compile(_COMMAND + r"(?:forget|never ?mind) about\b")
"""Takes something back, or leaves it for now."""

STOPPED = re.compile(r"\b(?:stop|quit|not) (\w+?)(?:(?<=(\w))\2)?ing\b")
"""What is no longer to be done; its first group is the verb as a rule has it."""

WITHOUT = re.compile(r"\b(?:without|ohne|sans|sin|senza|sem|zonder|bez|без)\b")
"""Spares what a rule asks for first."""

DOES = re.compile(
    r"\b(?:you|u|we|anyone|everyone|the assistant|du|ihr|man|tu|vous|on|puedes|podéis|se puede|puoi"
    r"|potete|si può|você|pode|podem|je|jullie|możesz|wolno|можно|можешь|feel free|it's|its|it is"
    r"|i'm"
    r"|i am)\b|^\W*\w{4,}ing\b(?![.])"
)
"""Allows somebody to do something; else it is a thing that is allowed."""

CLAUSES = re.compile(r"[,;:.!\n\u3001\u3002\uff0c\uff1b\u2014]+(?=\s|[^\x00-\x7f]|$)")
"""Between the parts of a rule."""

AGAIN = re.compile(
    r"\b(?:again|no longer|starting now|after all|from now on|any ?time|whenever|feel free"
    r"|allowed|permitted|fine|ok|okay"
    r"|welcome|wieder|ab jetzt|erlaubt|de nouveau|à nouveau|désormais|volver|ya|di nuovo|novamente"
    r"|voltar|weer|voortaan|znowu|znów|ponownie|снова|опять|art\u0131k)\b"
    "|再次|重新|以后|いい|よい|構|大丈夫|돼|됩|괜찮",
)
"""Allows for good what was forbidden, not just this time."""
