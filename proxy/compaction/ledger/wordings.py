"""How people word a rule, and what reads like one and is none, in the languages they mostly write.

Patterns only. Those of rules may match too much rather than too little: a message that is taken
for a rule without need costs a few tokens, one that is not taken for one may be lost. Those of
reports, questions and tasks are taken off first, and only where no rule is worded so. All is
written in small letters and meant for a sentence in small letters: ignoring case would make the
search several times as slow. How a rule is taken back is in `liftings`.
"""

import re

_LABEL = r"^(?:[-*•\d.)\s]*)(?:[\w /-]{2,40}:\s*)?(?:\W*)"

ENGLISH = re.compile(
    r"\b(?:always|never|from (?:now|here|today|this point) on|henceforth|going forward"
    r"|in (?:the )?future\b|at all times|at no (?:point|time)|under no circumstances?|on no account"
    r"|by no means|in no case|no matter (?:what|how)"
    r"|must(?:n['\u2019]t)?|al[wl]+[ays]{2,4}|(?!nerve\b)n[ev]{2,3}r?e?r|neber|nver|don;t|do nto"
    r"|dotn|may not|(?:may|can|should) only|only (?:ever|use"
    r"|touch|edit|change|write|allowed|permitted|supposed"
    r"|answer|reply|report|when|after|if|with|in|by|from|to)|not allowed|forbids?|disallows?"
    r"|forbidden|prohibited"
    r"|off[- ]limits|refrain|make sure|be sure to|ensure|every time|each time|whenever"
    r"|by default|without (?:(?:my|explicit|prior|first|a|the|any|your|our)\s+)*"
    r"(?:approv\w+|consent|permission|asking|confirm\w+|review\w*|safe ?word|second \w+|\w+ing)"
    r"|until (?:i|we|the|you|it|they|he|she|[a-z]+ [a-z]+ (?:approv|review|confirm|sign|say)\w*"
    r"|\w+ (?:approv|review|confirm|sign|say)\w*)|before (?:you|any|each|every|all)"
    r"|stick (?:to|with)|prefer\w*|i(?:['\u2019]d| would) (?:rather|like|prefer)"
    r"|(?:i|we|users?|the user|they) (?:always |never |only )?wants?"
    r"|should (?:never|always|not|stay|remain|be)|have to|has to|ha[sd] to stay|needs? to (?:stay"
    r"|be)"
    r"|no longer|anymore|instead of|rather than|as of (?:now|today)|keep [\w`\"'./-]{2,}|avoid|no"
    r" exceptions?|without exception|regardless|unless|except|approval from"
    r"|approving|(?:is|are) (?:fixed|final|mandatory|required|crucial|essential|non-negotiable"
    r"|sacred|immutable|a must)|it(?:['\u2019]s| is) (?:crucial|vital|essential|important|critical"
    r"|mandatory|imperative) (?:that|to)|do(?:es)? not move|escalate|remember (?:to|that)"
    r"|do not|don['\u2019]t|dont|cannot|can['\u2019]t|stop (?:\w+ing)|(?:must"
    r"|to) stay|at most|at least"
    r"|no more than|(?:is|are) capped|user['\u2019]s (?:\w+ )*(?:style|language"
    r"|code|day|format|unit))\b",
)
ENGLISH_COMMAND = re.compile(
    _LABEL + r"(?:(?:for|in|when|on|while|with)\b[^,]{1,60},\s*)?(?:please\s+|also\s+"
    r"|and\s+|then\s+|ok(?:ay)?[,.]?\s+|for the record[,:]\s+)*"
    r"(?:(?:no|zero|never|only|always|all|every|each|any)\s+\w"
    r"|(?:use|keep|report|send|write|answer|reply|respond|put|show|run|leave|treat|name|format"
    r"|call|speak|ask|check|wrap|end|start|begin|limit|mention|include|quote|cite|sign|log"
    r"|address|commit|state|list|return|save|store)\b.*"
    r"\b(?:all|every|each|any|always|in \w+(?: \w+){0,2} (?:style|units?|language|format|time"
    r"|order)|style|throughout|everywhere|for this (?:user|session|project)|to me|with me"
    r"|confirmations?|in (?:english|german|french|spanish|italian|portuguese|chinese|japanese"
    r"|korean|russian|metric|utc)|only|first|on (?:mon|tues|wednes|thurs|fri|satur|sun)day\w*))",
)
MANNER = re.compile(
    _LABEL + r"(?:please\s+|also\s+|and\s+)*(?:"
    r"(?:skip|leave)\b.*\b(?:alone|out|for now|as (?:it|they) (?:is|are))|hands off"
    r"|stay (?:out|away)"
    r"|keep (?:away|out|off)|do(?:n['\u2019]t| not) bother|treat\b.*\bas\b|(?:limit|restrict"
    r"|confine) (?:yourself|changes|edits|all|the|your|it|them|this|any|every)\b"
    r"|(?:ask|check with|tell|consult|notify|warn|confirm with) (?:me|us)\b.*\b(?:before"
    r"|prior|first|if"
    r"|when|each|every)|(?:get|wait for|seek) (?:my|our)\b|wait for\b.*\bbefore\b"
    r"|(?:bear|keep) in mind|(?:note|mind) that|be (?!there|here|sure\b)[a-z]+|assume\b|do no\b"
    r"|(?:call|address) me\b|one [\w-]+ per \w+|[\w ]{2,30} first, then\b|squash\b|cite\b|use \d+[-"
    r" ]\w+ (?:for|in) (?!this\b|that\b|it\b|the\b)|use (?!the\b|this\b|that\b|it\b)"
    r"[\w.-]+(?: [\w.-]+)? (?:for|in|when) (?!this\b|that\b|it\b|the (?:next|first|second|last"
    r"|one)\b|now\b)"
    r"(?:\w+ )?[\w-]+(?:s|ing|tion|code|docs|tests)\b"
    r"|(?:answer|reply|respond|write|speak|explain|log|output|print|return|report|comment|document)"
    r" (?:only |it |them |everything )?(?:in|as|with|like|to|briefly|shortly|concisely|tersely"
    r"|json|yaml|xml|csv|markdown|plain|[a-z]+ with)\b|output [a-z]{3,}"
    r"|(?:short|brief|terse|concise|long|detailed|plain) (?:answers?|replies|texts?|messages?"
    r"|summar\w+)"
    r"|(?:all |the )?(?:numbers|prices|dates|times|sizes|units|commit messages|comments|names"
    r"|answers"
    r"|replies|messages|summaries|reports|identifiers|variables|docs|tests) (?:in|with|as|go"
    r"|are|stay)\b"
    r"|(?!it\b|that\b|this\b|the\b|there\b)[\w ]{2,40}, not [\w ]{2,30}[.!]?$"
    r"|for (?:all|any|every|each) [^,]{1,60},\s*\w|(?:if|when|once) you (?:ever |want to |need to "
    r"|have to )?(?:add|touch|change|edit|modify|create|write|use|need|remove|delete|rename|update"
    r"|introduce|commit|push|deploy|move|copy|(?:are|aren['\u2019]t) (?:un)?sure|don['\u2019]t know"
    r"|are in doubt|have (?:any |a )?(?:doubts?|questions?))\b[^,]{0,80},\s*(?!it\b|the\b|they\b"
    r"|there\b|i\b|we\b|you (?:get|see|will)|you['\u2019]ll)\w|(?:if|when|in case|should)"
    r" [^,]{3,120},\s*(?:please |then |always "
    r"|just |also )*(?:stop|ask|tell|warn|ping|notify|escalate|flag|wait|pause|abort|check with"
    r"|report"
    r"|say so|mention|let (?:me|us) know)\b|if (?:an?|any|some|one) [^,]{3,100}, (?:please |then )?"
    r"(?!(?:it|the|they|there|i|we|you|this|that|an?|what|why|how|does|is|do|can)\b)[a-z]+\b"
    r"|nothing\b|nobody\b|(?:my|our) [\w -]{2,40} (?:is|are"
    r"|must)\b|make no\b|no \w+"
    r")",
)
"""How something is to be done: short commands that need no word of scope."""

HABIT = re.compile(
    r"\b(?:we (?:never|always|don['\u2019]t|do not) (?!know|see|have|understand|need|think|saw|got"
    r"|had|mind|care|get|\w+ed\b)\w+|i (?:like|love|hate|dislike|expect|insist|can['\u2019]t stand)"
    r"|as (?:little|few|short|simple|small|much) as possible|(?:after|before) (?:each|every|any"
    r"|all)\b|so (?:please )?(?:no|never|leave|avoid) \w+|(?:absolutely|strictly|definitely) no|for"
    r" (?:anything|everything)|(?:anything|everything|anyone|whoever) (?:that|who|touching|in|under"
    r"|outside|below|related)\b.*\b(?:must|should|ha(?:s|ve) to|needs?|goes|gets)|(?:skip|spare me"
    r"|leave out|omit) (?:the|all|any) (?:small ?talk|explanations?|intro\w*|preambles?|summary"
    r"|summaries|boilerplate|chit-?chat|disclaimers?|prose|pleasantries)|we (?:can['\u2019]t|cannot"
    r"|must not|mustn['\u2019]t) (?:use|add|change|touch|rely|break|ship|publish|store|log|share"
    r"|import|depend|deploy|push|merge|drop|remove)|please\b.*\beverywhere|everywhere,? please"
    r"|exclusively|nowhere else|unacceptable|acceptable|read-only|whatever you do|untouched"
    r"|in (?:separate|small steps)|as (?:a (?:table|list|diff|patch)|long as)"
    r"|use [\w ]+ (?:spelling|system|style)|not to be|while we|for (?:now|(?:this|our"
    r"|the rest of (?:this|the|our)) (?:session|project|task|chat|conversation|work))"
    r"|no circumstances?|before \w+ing|(?:my|our) (?:approval|consent|permission|go-ahead|review"
    r"|okay|ok))\b|^\W*(?:(?:make|use|add|put|write|keep|apply|spell|format"
    r"|name)\b.*\b(?:everywhere|throughout)|prefix|suffix|refer to|do (?:all|every))\b",
)
"""Customs of a project or a person, and how long something holds."""

_PAST = (
    r"(?:\w+(?<![seui])s|(?!feed|seed|need|embed|shed|proceed|exceed|speed)\w+ed|been|had|was|were"
    r"|got|saw|went)"
)
REPORT = re.compile(
    # Who does, did or cannot do something, says so and asks for nothing.
    r"\b(?:i|we|it|they|he|she|that|which|tests?|code) (?:do(?:es)?n['\u2019]t|do(?:es)? not|cannot"
    r"|can['\u2019]t|had to|never|always|no longer|must have)\b(?! (?:want|like|allow|wish|accept))"
    r"|(?:(?:\w['\u2019](?:ve|d)|\b(?:has|have|had|was|were)) (?:always|never|only|no longer)\b)"
    r"|(?<=\w )(?<!is )(?<!are )(?<!be )(?:always|never|no longer) " + _PAST + r"\b"
    r"|\b(?:must|have to|has to) (?:be (?:a|an|the|why|because|some\w*|due|how|what|it|related"
    r"|caused|wrong|broken|right|mistaken|missing|outdated|stale|lost|kidding|joking)\b|have"
    r" (?:been"
    r"|gone|got|had|\w+(?<!e)ed)\b)"
    r"|\b(?:error|logs?|compiler|linter|output|warning|console|terminal|traceback) (?:says?|said"
    r"|complains|reports|shows)\b.*"
    r"|\b(?:can['\u2019]t|cannot|could ?n['\u2019]t) (?:see|reproduce|find|tell|believe|figure|be"
    r" (?:serious|right|true))\b"
    r"|\bfrom now on (?:it|this|that)\b|\b(?:i|we|it|they|he|she|you|that|which) keeps? \w+ing\b"
    r"|\bi(?:['\u2019]d| would)? prefer (?:the|that|this|your) (?:\w+ )?(?:one|design|option"
    r"|approach|version|first|second|third|former|latter|solution|idea|plan|variant|way)\b"
    r"|\bi have to (?!ask|insist)|\bi (?:want|need|['\u2019]d like|would like) (?:a|an|one|two"
    r"|three|some|five)\b"
    r"(?!.*\b(?:each|every|all|always|any|only|never|future|end of)\b)",
)
"""Tells what is or was; where it stands, no rule is looked for."""

TASK = re.compile(
    r"\W*(?:please |can you |could you |now |then |also |ok(?:ay)?,? )*(?:write|add|create"
    r"|implement"
    r"|build|fix|find|generate|design|develop|extend|debug|look|search|check|investigate)\b"
)
OF_TASK = re.compile(
    r"\b(?:that|which|who|where|so(?: that)?) (?:(?!you\b|must\b)\w+ ){0,3}?(?:always|never|must"
    r" not"
    r"|must|only|cannot|can only|can['\u2019]t|do(?:es)?n['\u2019]t|no longer)(?: \w+)?"
    r"|\b(?:that|which) \w+s (?:\w+ )?(?:whenever|every time|each time)\b"
)
"""What a task says of the thing that is to be made or found."""

OTHER = re.compile(
    r"\W*(?:"
    # Of all or none of the things at hand.
    r"(?:always|never) " + _PAST + r"\b"
    r"|(?:all|every|each|any|no|only|both|most|some) (?:\w+ ){0,4}(?:pass(?:ed|es)?|fail(?:ed|s"
    r"|ing)?"
    r"|were|was|did|had|ran|crash\w+|broke|found|changed|hangs|throws|breaks|gives|takes|times out"
    r"|gets|shows|returns|(?:is|are) (?:broken|green|red|done|fine"
    r"|back|ok)|(?:have|has) been)\b(?!.*\b(?:must|should|shall|needs?|ha(?:ve|s) to|please|before"
    r"|until|never|always)\b)"
    r"|(?:show|list|name|find|give)(?: me| us)? (?:all|every|each|any)\b(?!.*\b(?:only|always|each"
    r"|in|as|first|style|throughout|everywhere)\b)"
    # Figures of speech.
    r"|(?:that(?:['\u2019]s| is| was|['\u2019]ll be)|this is) (?:all|it|everything|enough|fine)\b"
    r"|(?:no (?:problem|worries|idea|such|luck|doubt|way|rush|hurry|funciona|sé|hay|está|puedo"
    r"|entiendo|responde|tengo)|never ?mind|all (?:of (?:the"
    r"|that|them|this)|good|done|set|right|clear|fine|in all)|(?:do not|don['\u2019]?t) worry(?:"
    r" about"
    r" (?:it|that|this))?|not (?:sure|now|yet)|keep (?:going|it up|at it))\b[^,;.]{0,40}[.!]*$"
    r"|(?:do not|don['\u2019]?t) (?:know|understand|see) (?:why|how|what|if|where|who|whether|when"
    r"|which)\b"
    r"|(?:every time|each time|whenever) (?:i|it|we|the|someone|a)\b[^,;]{2,60}?(?:,| i| it) ?(?:i"
    r"|it"
    r"|they|the \w+|there)?\s?(?:gets?|sees?|have|is|are|\w+s|\w+ed)\b(?!.*\b(?:please|must|should"
    r"|you)\b)"
    # Logs and programs.
    r"|\d{4}-\d\d-\d\d[t ]\d\d:\d\d|\[(?:error|warn\w*|info|debug|trace)\]|npm (?:warn|err)|raise"
    r" \w+\("
    r"|throw new |(?:async )?def \w+\(|at \S+ \(\S+:\d+|assert [\w.]+ |[a-z]+(?:error|exception):"
    r"|error:|fatal:"
    r"|(?:nobody|no one) (?:knows|cares|understands|remembers|told|said|\w+(?<!e)ed)\b"
    r"|nothing (?:happen\w*|works?|changed?|is (?:wrong|shown|displayed))"
    r")"
)
"""What is no rule however it goes on."""

EUROPEAN_REPORT = re.compile(
    r"\bimmer (?:noch|wieder|mehr|öfter|weiter)\b|\bnoch nie\b"
    r"|\b(?:schlägt|startet|funktioniert|stürzt|hängt|läuft|geht|kommt|bleibt|war|hat|habe|haben"
    r"|gab"
    r"|wurde|scheint|klappt)\b(?: \w+){0,3}? (?:immer|nie|niemals|nicht|nur|kein\w*)\b"
    r"|\b(?:immer|nie|niemals)(?: \w+)? (?:funktioniert|fehl|klappt|geht|kaputt|gesehen|gehabt"
    r"|passiert)\b|\balle \w+ (?:laufen|sind|bestehen|waren)\b|\b(?:lösche?|ändere?) (?:bitte"
    r" )?(?:die"
    r"|den|das|diese\w*)\b(?! \w+ (?:nie|nicht))"
    r"|\b(?:ça|cela|je|j['\u2019]ai|il|elle|(?:le|la|les) \w+) (?:ne |n['\u2019]|me )?"
    r"(?!faut|doi|devr|convient)\w+ (?:pas|jamais|toujours|plus|rien)\b(?! (?:être|dépasser))"
    r"|\bje ne sais pas\b"
    r"|\bno (?:funciona|sé|hay|es|está|puedo|veo|tengo|entiendo|sirve|encuentra|existe|responde)\b"
    r"|\b(?:nunca|jamás|siempre) (?:había|he|ha|hemos|vi|falla|funciona|termina|está|es|se|da"
    r"|pasa)\b"
    r"|\bnon (?:funziona|so|ho|c['\u2019]è|riesco|vedo|trova|risponde|parte|capisco|posso"
    r"|sono)\b(?:"
    r" mai)?|\b(?:ho|ha|è) (?:sempre|mai)\b"
    r"|\bnão (?:funciona|sei|há|consigo|vejo|tenho|entendo|responde|existe|aparece|foi|deu|dá)\b"
    r"|\b(?:el|la|los|las|o|a|os|as|il|lo|de(?! a[gh]ora)|het) \w+ (?:\w+ )?(?:nunca|siempre"
    r"|sempre|mai|nooit"
    r"|altijd) (?!deb|dev|tem\b|tiene|mag|moet)\w+"
    r"|\b(?:il|lo|la|gli|le|o|a) \w+ (?!dev)\w+ (?:sempre|mai)\b"
    r"|\b(?:der|die|das|ein\w*|mein\w*) \w+ (?!muss|darf|soll|ist\b|hat\b)\w+t (?:immer|nie\w*)\b"
    r"|\b(?:de|het) \w+ (?!mag|moet|mogen)\w+ (?:altijd|nooit)\b|\bnigdy się nie \w+e\b"
    r"|\bzawsze (?!\w+(?:aj|uj|ij)\b)\w+(?:a|uje|ie|zy)\b"
    r"|\b(?:nunca|sempre) (?:vi|tive|tinha|funciona|termina|falha|dá)\b"
    r"|\b(?:werkt|faalt|crasht|start|heb|heeft|is|was)\b(?: \w+){0,3}? (?:altijd|nooit|niet)\b"
    r"|\bnie (?:działa|wiem|ma|jest|mogę|widzę|mam|rozumiem|widział\w*|był\w*)\b"
    r"|\b(?:zawsze się|nigdy (?:\w+ )?nie (?:widz|dział|był|mia)\w+)\b"
    r"|\b(?:всегда|никогда|только|сейчас)(?: не)? \w+(?:ет|ит|ют|ят|ал|ила|ало|или|алось|ается)\b"
    r"|\bн\u0435 (?:знаю|могу|вижу|понимаю|\w+(?:ет|ит|ют|ят))\b"
    r"|\b(?:her zaman|hiçbir zaman|asla)(?: \w+){0,3} \w+(?:\u0131yor|iyor|uyor|üyor)\w*"
)
"""The same in other languages."""

ASIAN_REPORT = re.compile(
    "总是.{0,6}不[开了到上]|항상 안 |(?:总是|始终|一直|每次)(?:都)?(?:会)?(?:失败|报错|出错|崩溃"
    "|卡住|超时|为空)|不知道|从来没"
    "|なぜ|どうして|(?:いつも|必ず|絶対に?)(?:失敗|落ち|エラー)|(?:항상|절대|꼭) ?(?:실패|에러"
    "|오류)"
)

ASKS = re.compile(
    r"\W*(?:(?:and|so|also|ok|btw|oh|please|und|et|y|e)\W+)*(?:(?:can|could|would|will) (?:you|u"
    r"|we)"
    r"|do you mind|would you mind"
    r"|kannst|könntest|könnten|würdest|können|peux-tu|pourrais-tu|pouvez|pourriez|tu peux|puedes"
    r"|podrías|podría|puede|puoi|potresti|può|pode|poderia|podes|kun je|kan je|zou je|czy możesz"
    r"|możesz|mógłbyś|można|можешь|можете|мог бы|не мог|могли бы)\b"
    "|.*(?:能不能|能否|可不可以|可以.{1,40}吗|好吗|いただけ|くれますか|もらえ|ください|주시겠|줄래"
    "|줄 수)"
)
"""Asks for something instead of asking a question."""

TAG = re.compile(
    r"[,.;]?\s*\b(?:ok(?:ay)?|alright|all right|right|please|got it|understood|deal|clear|will you"
    r"|can you|agreed|yeah|ja|oder|klar|verstanden|d['\u2019]accord|compris|vale|entendido|de"
    r" acuerdo"
    r"|va bene|capito|certo|tá|combinado|goed|dobrze|jasne|хорошо|понятно|ладно|tamam"
    r" m\u0131)\s*\?+$"
    r"|(?:,|\uff0c)?\s*(?:好吗|好么|行吗|可以吗|明白吗|いいですか|알겠지|알았지|알겠죠)[?\uff1f]*$",
)
"""Turns a rule into a question without need."""

EUROPEAN = re.compile(
    # German
    r"\b(?:immer|nie|niemals|ab (?:jetzt|sofort|heute)|von (?:nun|jetzt) an|künftig|in zukunft"
    r"|auf keinen fall|keinesfalls|stets|grundsätzlich|ausschließlich|dar(?:f"
    r"|fst|fen) (?:\w+ ){0,3}"
    r"(?:nicht|nur|nie)|muss|müssen|musst|bitte (?:nur|nicht|keine\w*)|verwende|vermeide\w*"
    r"|bevorzug\w*|lieber|verboten|nicht erlaubt|solange|bis (?:ich|wir)|kein(?:e[nrms]?)? \w+"
    r"|nur noch|(?:antworte|schreibe?|benutze?|nutze?|lösche?|ändere?|committe|pushe?) \w+"
    r"|jede[rnsm]?|alle[rnsm]?|dürfen|frag mich|fasse dich|halte dich|ohne \w+"
    r"|beachte|denk\w* d(?:a)?ran|merk\w* dir|beim \w+ immer|unter keinen umständen|finger (?:weg"
    r"|von)|lass\w* .{1,40} in ruhe|durchgehend|durchweg|konsequent|bitte .{0,40}\b(?:auf|in)"
    r" (?:englisch|deutsch|französisch|spanisch)|kein\w* \w+"
    # French
    r"|sans \w+|demande[zr]?[- ]moi|réponds|sois|évitez?|veille[zr]?"
    r"|toujours|jamais|désormais|dorénavant|à partir de maintenant|en aucun cas|il faut|doi(?:s|t)"
    r"|doivent|devez|uniquement|seulement|interdit\w*|évite[zr]?|préfèr\w*|jusqu['\u2019]à ce que"
    r"|tant que|pour (?:tout\w*|tous|chaque)|(?:chaque|tous|toutes) .{2,60}\b(?:doi\w+|devra)|avant"
    r" (?:de|chaque|tout)|interdi\w+|n(?:e |['\u2019])\w+ (?:\w+ )?(?:pas|jamais|plus|que|rien)"
    r"|réponds|répondez|utilise[zr]?"
    # Spanish
    r"|sin \w+|pregúntame|consúltame|escribe|sé \w+"
    r"|siempre|nunca|jamás|a partir de ahora|desde ahora|de ahora en adelante|en ningún caso"
    r"|debes?|deben|sólo|solo|únicamente|solamente|prefier\w*|evita\w*|hasta que|prohibid\w*"
    r"|no (?:uses|hagas|toques|borres|modifiques|cambies|subas|escribas|envíes|ejecutes"
    r"|\w+[ae]s (?:el|la|los|las|un|una|nada|en|mis?|este|esta|más))"
    r"|responde|utiliza|usa|(?:hay|tienes?|tienen) que|cada .{2,60}\b(?:debe|tiene)\w*|antes de"
    # Italian
    r"|senza \w+|chiedimi|scrivi|sii"
    r"|sempre|non \w+ mai|mai \w+re|d['\u2019]ora in poi|da ora in poi|in nessun caso|dev(?:e"
    r"|i|ono)|soltanto"
    r"|esclusivamente|preferi\w*|evitare|finché|fino a quando|vietato|non (?:\w+re|devi|deve"
    r"|usare|toccare)|rispondi|usare|prima di|ogni .{2,60}\bdev\w+"
    # Portuguese
    r"|sem \w+|pergunte-me|escreva|seja"
    r"|daqui em diante|de agora em diante|a partir de agora|em nenhuma hipótese|somente|apenas"
    r"|prefir\w*|evite\w*|até que|proibid\w*|não (?:\w+)|nunca|devem?|responda|(?:precisa|tem que"
    r"|tem de)|cada .{2,60}\b(?:precisa|deve|tem)"
    # Dutch, Polish, Turkish, Vietnamese
    r"|onder geen (?:beding|enkele)|geen \w+|gebruik|elke .{2,60}\bmoet\w*|zonder \w+|(?:graag"
    r"|liever)|pod żadnym|każd\w+|zabronion\w+|bez \w+|her (?:[\w'\u2019]+ ){1,6}olmal\u0131|hiçbir"
    r"|\w*(?:mal\u0131|meli)(?:d\u0131r|dir|s\u0131n|sin|y\u0131z|yiz)?|lütfen .*\w+(?:ma"
    r"|me)(?=\W*$)|yasak|\w+(?:may\u0131n|meyin)|\w+mal\u0131s\u0131n|(?:zorunlu|gerekir)|altijd"
    r"|nooit|vanaf nu|voortaan|alleen|moet|niet (?:meer )?\w+en|zawsze|nigdy|od teraz"
    r"|nie wolno|tylko|musi(?:sz|my|cie)?|her zaman|asla|bundan sonra|sadece|luôn"
    r"|không bao giờ|từ giờ|chỉ"
    r"|đừng)\b"
    # Russian and Ukrainian
    r"|\b(?:спрашивай\w*|перед \w+|кратко|пиши|всегда|никогда|отныне|впредь"
    r"|\u0441 этого момента|нельзя|долж\w+|только|исключительно"
    r"|предпочит\w*|избега\w*|до тех пор|пока я|пока не|запрещ\w*|обязательно|ни в коем случае"
    r"|не (?:\w+(?:й|йте|ть|и|ите|ти|ь))|используй\w*|отвечай\w*|пиши\w*|завжди|ніколи|відтепер"
    r"|тільки|повинн\w+)\b"
    # Nothing of the kind, at the beginning
    r"|^\W*(?:surtout )?(?:pas d(?:e |['\u2019])|nada de |niente |rien de |nichts )\w+",
)
ASIAN = re.compile(
    "不允许|所有|每次|先问|要简短|简短|都写|写成|[用以].{1,8}[写答回]"
    "|で書いて|短く|確認して|물어|짧게|로 써"
    "|永远|始终|总是|務必|务必|必须|必須|不得|不要|不准|不许|禁止|从现在|今后"
    "|以后|往后|只能|只用|只可|只允许"
    "|请勿|切勿|绝不|绝对|千万|优先|尽量|直到|除非|一律|不能|不可|应当|请用"
    "|请使用|都要|都用|偏好|更喜欢"
    "|すべての?|全ての?|毎回|付ける?こと|ること\u3002?$"
    "|常に|必ず|絶対|今後|これから|以降|ないで|てはいけ|てはなら|のみ|だけ"
    "|なければ|ようにして|までは|優先"
    "|控えて|しないこと|ないこと|すること|使って|してください|好み"
    "|항상|절대|앞으로|지금부터|이제부터|하지 ?마|지 ?마|말아|말고|말 것|금지"
    "|반드시|꼭|만 사용|해야|선호|대신"
    "|않도록|모든.*(?:합니다|한다|해라|하라)|하세요|해 ?줘|해 ?주세요"
    "|हमेशा|कभी|अब से|केवल|मत "
    "|دائما|دائمًا|أبدا|أبدًا|من الآن|يجب|فقط|لا ت"
)

RULE_LABEL = re.compile(
    r"\W*(?:[\w-]+ )?(?:rules?|wichtig|importante?|constraints?"
    r"|preferences?|requirements?|polic(?:y|ies)|restrictions?"
    r"|conventions?|important|regel|vorgabe|règle|contrainte|regla|restricción|regola|vincolo|regra"
    r"|restrição|правило|ограничение|规则|约束|偏好|要求|ルール|制約|규칙|제약)\s*[:\uff1a]",
)
_TRIGGER_WORDS = """
    always never if from henceforth forward future times circumstances case matter must mustn may
    only
    allowed forbidden prohibited limits refrain make sure ensure every each time whenever default
    without until before stick prefer prefers preferred preference preferably rather would like want
    wants should have has needs need longer anymore instead now today keep avoid no exception
    exceptions regardless unless except approval approving fixed final move escalate remember not
    don dont cannot can stop stay most least more capped style language code day format unit all any
    everywhere throughout only first confirmations zero user use report send write answer reply
    respond put show run leave treat name call speak ask check wrap end start begin limit mention
    include quote cite sign log address commit state list return save store
    skip leave hands treat limit restrict confine confirm tell consult notify warn get seek bear
    mind note be assume address one squash output log print explain short brief terse concise long
    detailed plain numbers prices dates sizes units commit comments names answers replies messages
    summaries reports identifiers variables docs tests nothing nobody my our hate dislike expect
    insist while session project small steps circumstance love wait documents document comment
    alone per exclusively point account means forbids disallow disallows al alway alwas alwyas
    allways awlays alwasy nevr neevr neber nver nto dotn reminder reminders note notes if when once
    possible crucial vital essential critical mandatory required imperative neever neverr anything
    everything anyone whoever supposed approvals nowhere acceptable unacceptable untouched separate
    table
    list diff patch spelling system prefix suffix refer whatever read
    rule rules constraint constraints preferences requirement requirements policy policies
    restriction restrictions convention conventions important
"""
TRIGGERS = frozenset(_TRIGGER_WORDS.split())
"""Words of which an English rule has at least one; a sentence without is let go."""

_FOREIGN_TRIGGER_WORDS = """
    jede jeder jedes jeden alle aller alles zukunft zaman ahora faut
    frag fasse halte ohne beachte sans demande demandez sois veillez sin escribe senza chiedimi
    scrivi sii sem pergunte escreva seja consulta
    immer nie niemals ab von auf keinesfalls stets darf darfst muss musst bitte verwende vermeide
    vermeiden lieber verboten nicht solange bis kein keine keinen keiner nur antworte schreib
    schreibe benutze nutze regel vorgabe bevorzuge bevorzugt
    toujours jamais partir aucun dois doit doivent devez uniquement seulement interdit interdite
    tant jusqu utilise utilisez
    siempre nunca desde debe debes deben solo solamente prefiero prefiere evita evitar hasta
    prohibido prohibida responde utiliza usa regla
    sempre mai ora deve devi devono soltanto esclusivamente preferisco preferisce evitare vietato
    non rispondi usare regola vincolo fino
    daqui agora partir somente apenas prefira prefiro evite proibido responda regra
    altijd nooit vanaf voortaan alleen moet niet zawsze nigdy od nie tylko musi musisz asla
    finger lass nada niente rien nichts bundan sadece ne pas devem durchgehend durchweg konsequent
    denk denke merk pour chaque tous toutes avant hay que tienes tiene cada antes prima ogni precisa
    tem
    onder geen gebruik elke zonder graag liever zabronione bez yasak gerekir zorunlu her umst nota
    hinweis wichtig
    importante
"""
FOREIGN_TRIGGERS = frozenset(_FOREIGN_TRIGGER_WORDS.split())
"""The same for what `EUROPEAN` finds in unaccented letters."""

ASCII_WORD = re.compile(r"[a-z]+")
_ACCENTED = re.compile(r"[^\W\x00-\x7f]")


def is_plain(text: str) -> bool:
    """Tell whether a text has but unaccented letters, whatever its quotes and dashes are."""
    return text.isascii() or not _ACCENTED.search(text)
