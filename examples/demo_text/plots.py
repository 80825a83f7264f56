"""The plots of the stories."""

# ruff: noqa: E501
# fmt: off
# A table: a beat of a story is one line.

# A plot: topics = what a user may ask for; uses = props that the user may name (objs, foods: which
# of them fit); feel = a feeling the hero has;
# beats = the story, a leading "?" marks a beat that short stories leave out; moral; sum = the story in two sentences;
# ask = questions about it and their answers.  Fields: H, he, him, his (hero), F, fhe, fhim, fhis (friend), Ff and Hf
# (the full names), obj, col, food, spot, spot2, spot3, weather, game, place, thing.

PLOTS = {
    "lost": dict(topics=["losing something", "a lost {obj}"], uses="obj", feel="sad", beats=[
        "[One {weather} morning, {H} wanted to play with {his} {col} {obj}, but it was gone.|One {weather} day, {H} could not find {his} {col} {obj}.] [{He} looked {spot}, but it was not there.|{H} felt very sad.|A tear ran down {his} face.]",
        "[Just then, {Ff} came by.|Soon {Ff} heard {him} crying.] \"[What is wrong|Why are you so sad]?\" asked {F}. \"I lost my {obj},\" said {H}.",
        "\"[Do not worry|Do not cry]. We will look for it together,\" said {F}. They looked {spot2}. [They found only leaves.|It was not there.|They found only an old shoe.] Then {F} looked {spot3}. There was the {col} {obj}!",
        "?\"Thank you, {F}!\" [said|cried] {H}. \"You are a good friend.\""],
        moral="a good friend helps when you are sad", sum="{H} lost {his} {col} {obj}. {Ff} helped {him}, and they found it {spot3}.",
        ask=[("What did {H} lose?", "{H} lost {his} {col} {obj}."), ("Where was the {obj}?", "The {obj} was {spot3}.")]),
    "share": dict(topics=["sharing", "sharing food"], uses="food", feel="hungry", beats=[
        "One {weather} day, {H} had [a sweet|a big|a warm|a fresh] {food}. {He} sat down {spot} to eat it. [It smelled so good.|{H} wanted to eat it all.]",
        "[Then {he} saw {Ff}.|Just then, {Ff} walked by.] {F} looked very hungry. \"[That {food} looks good|I have not had any food today],\" said {F}.",
        "?{H} looked at the {food}, and then {he} looked at {F}. [At first, {he} did not want to share.|{He} thought about it for a while.]",
        "{H} [broke|cut] the {food} in two. \"[Here, this part is for you|You can have half],\" said {H}. \"Thank you, you are very kind,\" said {F}.",
        "?[They ate the {food} together, and it was the best {food} ever.|The {food} was small, but they both felt full and happy.]"],
        moral="food tastes better when you share it", sum="{H} had {afood}. {Ff} was hungry, so {H} broke it in two and shared it.",
        ask=[("What did {H} share?", "{H} shared {afood}."), ("Who was hungry?", "{F} was hungry.")]),
    "stuck": dict(topics=["helping a friend", "helping others", "helping"], uses="obj", feel="brave", objs="kite scarf ribbon blanket coat umbrella basket flute", things=["in the deep mud", "in a hole", "under a heavy branch", "in a bush", "on a high rock"], beats=[
        "One {weather} day, {H} went for a walk with {his} {obj}. Suddenly {he} heard a small voice. \"Help! Help!\" cried the voice.",
        "{H} ran to look {spot}. It was {Ff}! {F} was stuck {thing}. [{H} pulled and pulled, but {F} did not move.|{H} wanted to help, but {he} was not strong enough.]",
        "Then {H} had an idea. {He} used {his} {obj} to reach {fhim}. [One, two, three!|It was hard work.] At last, {F} was free.",
        "?\"[You saved me|Thank you, {H}]!\" said {F}. \"You are so brave.\""],
        moral="it is good to help others", sum="{Ff} was stuck {thing}. {H} used {his} {obj} and set {fhim} free.",
        ask=[("Where was {F} stuck?", "{F} was stuck {thing}."), ("How did {H} help?", "{H} used {his} {obj} to help {F}.")]),
    "fear": dict(topics=["being brave", "being afraid of {thing}", "feeling scared"], uses="", feel="afraid", things=["the dark", "the deep water", "the loud thunder", "the high bridge", "the big dog", "the old house"], beats=[
        "But {H} was afraid of {thing}. [{He} did not tell anyone about it.|Every time {he} thought of it, {his} legs began to shake.]",
        "One {weather} day, {Ff} came to visit. \"Come with me,\" said {F}. \"I can not go,\" said {H}. \"I am afraid of {thing}.\"",
        "\"[I was scared once too|It is all right to be afraid],\" said {F}. \"I will stay with you.\" So {F} walked beside {him}, and they took one small step. [Then they took another step.|They went very slowly.]",
        "[Soon {H} was not shaking anymore.|{H} opened {his} eyes and saw that it was not so bad.] \"I did it!\" said {H}. \"I am not afraid of {thing} anymore!\""],
        moral="being brave means trying even when you are scared", sum="{H} was afraid of {thing}. {Ff} stayed with {him}, and soon {H} was brave.",
        ask=[("What was {H} afraid of?", "{H} was afraid of {thing}."), ("Who stayed with {H}?", "{F} stayed with {H}.")]),
    "build": dict(topics=["building {athing}", "working together", "not giving up"], uses="", feel="proud", things=["house", "boat", "kite", "castle", "tree house", "bridge", "nest", "wagon"], beats=[
        "One {weather} morning, {H} and {Ff} wanted to build {athing}. \"It will be the best one ever,\" said {H}. {H} carried the [wood|stones|paper], and {F} [held the rope|made a plan|sang a song].",
        "[But then a strong wind came.|But then it began to rain.] The {thing} [fell down|broke|fell apart]. \"What do we do now?\" asked {F}.",
        "\"[We can try again|Let us try one more time],\" said {H}. This time they [worked slowly|used more rope|helped each other]. By the evening, the new {thing} was done.",
        "?[It was {col} and strong.|It was even better than before.|It was the best {thing} in the {place}.]"],
        moral="you should never give up", sum="{H} and {Ff} built {athing}. It broke, but they tried again and made a better one.",
        ask=[("What did they build?", "They built {athing}."), ("Who helped {H}?", "{Ff} helped {H}.")]),
    "seed": dict(topics=["a seed", "a garden", "waiting", "growing {athing}"], uses="", feel="curious", things=["flower", "tree", "pumpkin", "rose", "sunflower", "apple tree"], beats=[
        "One {weather} morning, {H} found a tiny seed {spot}. \"I will plant it in the garden,\" said {H}. So {he} dug a hole, put the seed in it, and gave it some water.",
        "The next day, {H} ran out to look, but there was nothing. \"Why does it not grow?\" asked {H}. {Ff} smiled. \"You must wait,\" said {F}. \"Good things take time.\"",
        "?So {H} came every day with {his} little cup of water. [The rain came, and the sun came too.|Days went by.]",
        "Then one morning, there was a small green leaf. It grew and grew, until it was a tall {col} {thing}. \"Look, {F}! It grew!\" cried {H}."],
        moral="good things take time", sum="{H} planted a tiny seed. {Ff} told {him} to wait, and it grew into {athing}.",
        ask=[("What did the seed become?", "The seed became {athing}."), ("What did {H} find?", "{H} found a tiny seed {spot}.")]),
    "truth": dict(topics=["telling the truth", "a broken {thing}"], uses="obj", feel="sorry", things=["vase", "cup", "window", "plate", "lamp", "bowl"], beats=[
        "One {weather} day, {H} was playing inside with {his} {obj}. Crash! The {col} {thing} [fell and broke|broke into many pieces].",
        "{H} was scared. [{He} wanted to hide.|{He} put the pieces under the bed.] Then {Ff} came in. \"What happened to the {thing}?\" asked {F}. {H} looked at the floor.",
        "\"I broke the {thing}. I am sorry,\" said {H}. \"Thank you for telling the truth,\" said {F}. [Then they cleaned up together.|They fixed the {thing} with glue.]"],
        moral="it is always best to tell the truth", sum="{H} broke a {col} {thing}. {He} told {Ff} the truth, and all was well.",
        ask=[("What did {H} break?", "{H} broke a {col} {thing}."), ("Was {F} angry?", "No, {F} was glad that {H} told the truth.")]),
    "night": dict(topics=["a sound at night", "the night", "a strange sound"], uses="obj", feel="scared", things=["tap, tap, tap", "hoo, hoo, hoo", "scratch, scratch", "bump, bump", "ding, ding"], beats=[
        "One night, {H} could not sleep. [The moon was bright.|The wind was blowing.|It was very dark.] Then {he} heard a sound. {Thing}! \"What is that?\" whispered {H}.",
        "{H} took {his} {obj} and went [to the door|out into the garden|down the stairs]. [{His} heart was beating fast.|{He} walked very slowly.] {Thing}! The sound came from a place {spot}.",
        "{H} looked, and there was {Ff}! \"[I lost my way in the dark|I was cold and I wanted to come in],\" said {F}. \"[You can stay with us tonight|Come in, it is warm here],\" said {H}.",
        "?{H} gave {F} {afood} and a {col} blanket."],
        moral="things are not so scary when you look at them", sum="{H} heard a strange sound at night. It was only {Ff}, who was cold and wanted to come in.",
        ask=[("What was the sound?", "The sound was {F}."), ("What did {H} take?", "{H} took {his} {obj}.")]),
    "race": dict(topics=["a race", "winning and losing", "running"], uses="", feel="proud", things=["golden cup", "big cake", "blue ribbon", "red flag", "silver bell"], beats=[
        "One day, there was a race. The prize was a {thing}. {Ff} was very fast. \"I will win! Nobody can beat me,\" said {F}. {H} [said nothing|only smiled].",
        "One, two, three, go! {F} ran off like the wind. {H} [ran slowly, one step at a time|did not stop|kept going]. Half way there, {F} fell into [a puddle|a hole|the mud].",
        "{H} could run past and win. But {he} stopped to help {fhim}. \"Are you all right, {F}?\" asked {H}. \"[Let me help you|Let us go together].\" So they crossed the line side by side, and everyone [cheered|clapped].",
        "?They both got a {thing}. \"I am sorry that I was so proud,\" said {F}. \"You are a true friend.\""],
        moral="a friend is better than a prize", sum="{H} and {Ff} ran a race. {F} fell, so {H} stopped to help, and they crossed the line together.",
        ask=[("What was the prize?", "The prize was a {thing}."), ("Who fell?", "{F} fell, and {H} stopped to help.")]),
    "gift": dict(topics=["a gift", "a present", "making {aobj}"], uses="obj", feel="happy", beats=[
        "It was the birthday of {Ff}. {H} wanted to give {fhim} a gift, but {he} had no money. \"What can I do?\" said {H}.",
        "{H} went to [the forest|the beach|the hill] and found [smooth stones|soft feathers|bright leaves|pretty shells]. {He} worked all day and made {acol} {obj}. [It was not perfect, but it was made with love.|{He} put it in a little box.]",
        "?At the party, there were many big gifts. {H} felt shy.",
        "Then {F} opened the little box. \"Did you make this {obj} for me?\" asked {F}. \"It is the best gift of all!\" {F} gave {H} a big hug."],
        moral="the best gifts come from the heart", sum="It was the birthday of {Ff}. {H} had no money, so {he} made {acol} {obj}, and {F} loved it.",
        ask=[("What did {H} make?", "{H} made {acol} {obj}."), ("Who was the gift for?", "The gift was for {F}.")]),
    "wood": dict(topics=["being lost in the woods", "finding the way home", "asking for help"], uses="", feel="lost", things=["the bright star", "the little river", "the white stones", "the sound of the bell", "the tiny light"], beats=[
        "One {weather} day, {H} took a long walk. {He} walked and walked, until {he} did not know where {he} was. [The trees were tall and dark.|All the paths looked the same.]",
        "{H} sat down {spot}. \"How will I get home?\" {he} said. Then {Ff} came by. \"Are you lost?\" asked {F}. \"Yes. I can not find my way,\" said {H}.",
        "\"Follow {thing}, and you will find your way,\" said {F}. So they followed {thing}. [They went over the hill.|They went past the mill.|They crossed a small bridge.] At last, {H} saw a light. It was home!",
        "?{His} family ran out to meet {him}. They gave {F} {afood} and said thank you."],
        moral="it is wise to ask for help", sum="{H} was lost in the woods. {Ff} told {him} to follow {thing}, and {he} came home.",
        ask=[("What did they follow?", "They followed {thing}."), ("Who helped {H}?", "{Ff} helped {H}.")]),
    "lonely": dict(topics=["making a new friend", "being lonely", "friendship"], uses="obj", feel="lonely", beats=[
        "But {H} had no friends, and {he} felt lonely. Every day, {he} sat {spot} with {his} {col} {obj} and [watched the clouds|talked to the wind].",
        "One {weather} day, {Ff} sat down next to {him}. \"That is a nice {obj},\" said {F}. \"Can I play too?\" {H} was [shy|surprised], but {he} said, \"Yes.\"",
        "They played with the {obj} until the sun went down. [They laughed and laughed.|They told each other many jokes.] \"Will you come back tomorrow?\" asked {H}. \"Yes, I will come every day,\" said {F}.",],
        moral="a friend can be found anywhere", sum="{H} was lonely. {Ff} liked {his} {col} {obj}, so they played together and became friends.",
        ask=[("Why was {H} sad?", "{H} was lonely."), ("Who became a friend?", "{F} became {his} friend.")]),
    "storm": dict(topics=["a storm", "the rain and the wind", "bad weather"], uses="food", feel="worried", beats=[
        "One evening, a big storm came. The wind was loud, and the rain fell hard. {H} was safe inside, but {he} saw {Ff} out in the rain.",
        "\"Come in, {F}!\" called {H}. {F} was wet and cold. {H} gave {fhim} a warm blanket and {afood}. \"[My roof is broken|The wind took my roof],\" said {F}.",
        "?All night, the storm went on. They sat by the fire and told stories.",
        "In the morning, the sky was blue. \"Let us fix your roof,\" said {H}. They worked all day, and the new roof was {col} and strong. \"Thank you, {H},\" said {F}."],
        moral="a warm home is best when you share it", sum="A big storm broke the roof of {Ff}. {H} let {fhim} in, and later they fixed the roof together.",
        ask=[("What broke in the storm?", "The roof of {F} broke."), ("What did {H} give to {F}?", "{H} gave {fhim} a warm blanket and {afood}.")]),
    "wish": dict(topics=["a wish", "a falling star", "a star"], uses="obj", feel="hopeful", beats=[
        "One night, {H} saw a falling star. \"I wish I had {acol} {obj},\" said {H}. The star fell down {spot}.",
        "{H} ran to see it. There was a {col} {obj}, and next to it sat {Ff}. {F} was crying. \"That {obj} is mine,\" said {F}. \"I have nothing else.\"",
        "{H} wanted the {obj} very much. But {he} gave it to {F}. \"Here you are,\" said {H}. \"[Do not cry|It is yours].\"",
        "?Then the star began to shine. \"You have a kind heart,\" said the star. And in the morning, there was a new {obj} by {his} bed."],
        moral="a kind heart makes wishes come true", sum="{H} wished for {acol} {obj}. It belonged to {Ff}, so {H} gave it back.",
        ask=[("What did {H} wish for?", "{H} wished for {acol} {obj}."), ("Whose {obj} was it?", "It belonged to {F}.")]),
    "sick": dict(topics=["a sick friend", "taking care of a friend", "being kind"], uses="food", feel="worried", beats=[
        "One {weather} morning, {H} went to see {Ff}, but {F} was in bed. \"I am sick,\" said {F}. \"I can not play today.\"",
        "{H} was worried. {He} made hot soup and brought {fhim} {afood}. Then {he} [read a book to {F}|sang a soft song|told {fhim} a funny story].",
        "?[That night, {H} stayed and kept {fhim} warm.|{H} came back every day.]",
        "[The next day|After three days], {F} was well again. \"You are the best doctor, {H},\" said {F}. \"And that was a very good {food}.\""],
        moral="a little kindness can make you well", sum="{Ff} was sick in bed. {H} brought {fhim} soup and {afood}, and soon {fhe} was well.",
        ask=[("Who was sick?", "{F} was sick."), ("What did {H} bring?", "{H} brought soup and {afood}.")]),
    "music": dict(topics=["music", "learning to play the {thing}", "practice"], uses="", feel="shy", things=["drum", "flute", "bell", "guitar", "piano", "horn"], beats=[
        "{H} wanted to play the {thing}, but it sounded bad. [The birds flew away.|Everyone covered their ears.] {H} felt sad and put the {thing} away.",
        "\"Do not stop,\" said {Ff}. \"You must practice a little every day.\" So {H} played the {thing} every morning {spot}. {F} [listened|danced|sang along].",
        "?[Slowly, it got better.|After one week, it sounded a little better.]",
        "At the big party, {H} played the {thing} for everyone. [They danced and clapped.|The birds came back to listen.] \"I knew that you could do it,\" said {F}."],
        moral="practice makes things better", sum="{H} played the {thing} badly. {Ff} told {him} to practice, and at the party everyone danced.",
        ask=[("What did {H} play?", "{H} played the {thing}."), ("Who told {H} to practice?", "{F} told {H} to practice.")]),
    "angry": dict(topics=["a fight between friends", "saying sorry", "being angry"], uses="obj", feel="angry", beats=[
        "One day, {H} and {Ff} found {acol} {obj} {spot}. \"I saw it first!\" said {H}. \"No, it is mine!\" said {F}. They pulled and pulled.",
        "{H} was so angry that {he} went home. {F} went home too. [The {obj} stayed there all alone.|Nobody played with the {obj}.]",
        "?That night, {H} could not sleep. {He} missed {his} friend.",
        "In the morning, {H} went to {F}. \"I am sorry that I was angry,\" said {H}. \"I am sorry too,\" said {F}. \"The {obj} can be yours today and mine tomorrow.\" [They shook hands.|They hugged.]"],
        moral="a friend is worth more than a toy", sum="{H} and {Ff} had a fight about {acol} {obj}. In the morning they said sorry and shared it.",
        ask=[("What did they find?", "They found {acol} {obj}."), ("Why was {H} angry?", "{H} was angry because {he} wanted the {obj}.")]),
    "learn": dict(topics=["learning to {thing}", "trying again", "learning something new"], uses="", feel="nervous", things=["swim", "dance", "climb", "fly a kite", "ride a bike", "bake", "skate", "paint"], beats=[
        "{H} could not {thing}. All {his} friends could {thing}, but when {H} tried, it went wrong. \"I will never learn it,\" said {H}.",
        "{Ff} heard {him}. \"I can teach you to {thing},\" said {F}. \"First you go slow, and then you go fast.\" [{H} tried once. It went wrong.|{H} fell down, but {he} stood up again.]",
        "?\"Try again,\" said {F}. {H} tried two times, three times, four times.",
        "Then it worked! \"Look, {F}! I can {thing}!\" shouted {H}. {F} [clapped|jumped up and down|laughed with joy]."],
        moral="you learn by trying", sum="{H} could not {thing}. {Ff} helped {him} try again and again, until {he} could {thing}.",
        ask=[("What did {H} learn?", "{H} learned to {thing}."), ("Who was the teacher?", "{Ff} was the teacher.")]),
    "treasure": dict(topics=["a treasure", "an old map", "a treasure hunt"], uses="", feel="excited", things=["gold coins", "shiny shells", "old books", "sweet cookies", "silver spoons", "funny hats"], beats=[
        "One {weather} day, {H} found an old map {spot}. There was a big X on it. \"It is a treasure map!\" said {H}. {He} ran to show it to {Ff}.",
        "\"Let us find the treasure,\" said {F}. They walked to the {place} and counted [ten|five|seven] steps. Then they began to dig {spot2}.",
        "?[They dug and dug.|The sun was hot.] \"Maybe there is nothing here,\" said {H}. \"Just a little more,\" said {F}.",
        "Bump! There was a {col} box. {H} opened it. It was full of {thing}! \"We will share it with everyone,\" said {H}."],
        moral="a treasure is best when you share it", sum="{H} found an old map. {He} and {Ff} dug {spot2} and found a box full of {thing}.",
        ask=[("What was in the box?", "The box was full of {thing}."), ("Where did they dig?", "They dug {spot2}.")]),
    "surprise": dict(topics=["a birthday", "a surprise party", "a surprise"], uses="food", feel="sad", beats=[
        "It was {his} birthday, but nobody said a word. {H} went to see {Ff}. \"I have no time today,\" said {F}, and {fhe} ran away.",
        "{H} walked home with {his} head down. \"They all forgot my birthday,\" {he} said. {He} felt very sad.",
        "{H} opened the door. \"Surprise!\" shouted {F}. All {his} friends were there, with {col} hats and a big {food} on the table.",
        "?\"We did not forget,\" said {F}. \"We wanted to surprise you.\" {H} laughed and ate the {food}."],
        moral="friends do not forget you", sum="{H} thought that everyone forgot {his} birthday. But {Ff} made a surprise party with a big {food}.",
        ask=[("What was on the table?", "There was a big {food} on the table."), ("Who made the party?", "{F} made the party.")]),
    "nest": dict(topics=["a baby bird", "a bird and its nest", "helping a bird"], uses="", feel="gentle", things=["bird", "owl", "duck", "crow", "robin"], beats=[
        "One {weather} morning, {H} found a baby {thing} {spot}. It had fallen from its nest. \"Do not be afraid, little {thing},\" said {H}.",
        "The nest was high up in the tree, and {H} could not reach it. So {he} called {Ff}. \"Stand on my back,\" said {F}. {H} climbed up, very slowly.",
        "{H} put the baby {thing} back in its nest. The mother {thing} sang a happy song. \"You did it!\" said {F}.",
        "?Every spring, the {thing} came back to sing for {H} and {F}."],
        moral="we should be gentle with small things", sum="{H} found a baby {thing}. {Ff} helped {him} put it back in its nest.",
        ask=[("What did {H} find?", "{H} found a baby {thing}."), ("Who helped {H}?", "{F} helped {H}.")]),
    "bridge": dict(topics=["a bridge", "a clever idea", "being clever"], uses="food", feel="clever", beats=[
        "One day, {H} wanted to cross the bridge. But {Ff} stood in the way. \"This is my bridge,\" said {F}. \"Nobody may cross it.\"",
        "{H} thought for a while. \"I have {afood} here,\" said {H}. \"If you let me cross, we can eat it together on the other side.\"",
        "?{F} smelled the {food}. {His2} stomach made a loud sound.",
        "\"All right,\" said {F}, and they crossed the bridge together. They ate the {food} {spot}. \"I was only lonely,\" said {F}. \"Come and cross my bridge every day.\""],
        moral="a kind word is better than a fight", sum="{Ff} did not let {H} cross the bridge. {H} shared {afood}, and they became friends.",
        ask=[("Who stood on the bridge?", "{Ff} stood on the bridge."), ("What did {H} have?", "{H} had {afood}.")]),
    "snow": dict(topics=["the snow", "winter", "a snowman"], uses="obj", feel="cold", beats=[
        "One morning, the whole {place} was white. \"Snow!\" cried {H}. {He} put on {his} coat and ran to find {Ff}.",
        "They made a big snowman {spot}. {H} gave it a carrot for a nose, and {F} gave it {acol} {obj}. \"He looks so happy,\" said {F}.",
        "Then the sun came out, and the snowman got smaller and smaller. Soon there was only the {col} {obj}. {H} was sad.",
        "?\"Do not be sad,\" said {F}. \"He will come back next winter.\" They drank hot milk by the fire."],
        moral="some things come back if you wait", sum="{H} and {Ff} made a snowman with {acol} {obj}. The sun took it away, but it will come back next winter.",
        ask=[("What did they make?", "They made a snowman."), ("What did {F} give to the snowman?", "{F} gave it {acol} {obj}.")]),
    "bake": dict(topics=["baking {afood}", "cooking", "a mistake in the kitchen"], uses="food", feel="happy", foods="cake pie cookie bun muffin pancake cupcake", beats=[
        "One {weather} day, {H} wanted to bake a big {food}. {He} took milk, eggs and flour. {Ff} came to help.",
        "But {F} put in salt and not sugar! {H} took a bite. \"Oh no, this {food} is too salty!\" said {H}. {F} [began to cry|looked at the floor]. \"I am sorry,\" said {F}.",
        "\"It was only a mistake,\" said {H}. \"We can make a new one.\" This time they used sugar. The new {food} was [sweet and warm|big and sweet], and they ate it {spot}."],
        moral="everyone makes mistakes", sum="{H} and {Ff} baked {afood}, but {F} used salt. They made a new one, and it was sweet.",
        ask=[("What did they bake?", "They baked {afood}."), ("What was the mistake?", "{F} used salt and not sugar.")]),
    "move": dict(topics=["a new home", "moving to a new place", "a new house"], uses="obj", feel="homesick", beats=[
        "Then {his} family moved to a new house[ far away|]. {H} did not like it. \"I do not know anyone here,\" said {H}. {He} sat on the steps with {his} {col} {obj}.",
        "{Ff} lived next door. \"Hello,\" said {F}. \"I can show you the best place here.\" {H} took {his} {obj}, and they walked to the river.",
        "[They threw stones into the water.|They sat in the sun and talked.] \"I was new here once too,\" said {F}. \"Now it is my home.\" {H} smiled for the first time.",
        "?That night, {H} put the {obj} next to {his} bed. The new house felt like home."],
        moral="a new place becomes home when you have a friend", sum="{H} moved to a new house and felt sad. {Ff} lived next door and became {his} friend.",
        ask=[("Who lived next door?", "{F} lived next door."), ("What did {H} take to the river?", "{H} took {his} {col} {obj}.")]),
    "show": dict(topics=["a show", "singing for everyone", "being shy"], uses="", feel="shy", things=["sing", "dance", "read a poem", "tell a joke", "do a trick", "play a song"], beats=[
        "Soon there was a big show in the {place}. {H} wanted to {thing}, but {he} was too shy. \"Everyone will look at me,\" {he} said.",
        "\"Just look at me,\" said {Ff}. \"I will sit in front and smile.\" {H} [took a deep breath|closed {his} eyes for a moment].",
        "On the day of the show, {H} saw {F} and was not so shy anymore. {He} began to {thing}. [It was very good.|Nobody made a sound.] At the end, everyone [clapped|cheered].",
        "?\"See?\" said {F}. \"I told you.\""],
        moral="a friend can give you courage", sum="{H} was too shy to {thing} at the show. {Ff} sat in front and smiled, and {he} did it.",
        ask=[("What did {H} want to do?", "{H} wanted to {thing}."), ("Who sat in front?", "{F} sat in front and smiled.")]),
    "greedy": dict(topics=["being greedy", "eating too much"], uses="food", feel="greedy", beats=[
        "One day, {H} found a basket full of {foods} {spot}. \"They are all for me,\" said {H}. {Ff} asked for one, but {H} said, \"No!\"",
        "{H} ate one, two, three, four, five {foods}. Then {his} stomach began to hurt. \"Oh, oh,\" said {H}. {He} could not walk.",
        "{F} came back with some warm tea. \"Drink this,\" said {F}. \"You were not nice, but I will help you.\" {H} felt better, but {he} was sorry.",
        "?The next day, {H} gave {F} the rest of the {foods}. \"I will share next time,\" said {H}."],
        moral="you should not take too much", sum="{H} ate too many {foods} and did not share. {His} stomach hurt, and {Ff} was kind and helped {him}.",
        ask=[("What did {H} eat?", "{H} ate too many {foods}."), ("Who helped {H}?", "{F} helped {H}.")]),
    "rescue": dict(topics=["a kitten in a tree", "saving a kitten", "a rescue"], uses="obj", feel="brave", objs="hat basket box blanket coat scarf umbrella", beats=[
        "One {weather} day, {H} heard a soft sound. A small kitten sat high in a tree and could not come down. \"Meow,\" said the kitten.",
        "{H} climbed up, but the branch was too thin. \"Wait!\" called {Ff}. \"We can use your {obj}.\" {H} held up {his} {col} {obj}, and the kitten jumped into it.",
        "Down they came, step by step. \"Good idea, {F}!\" said {H}. The kitten [licked {his} hand|fell asleep in the {obj}].",
        "?They gave the kitten some milk and called it Button."],
        moral="two heads are better than one", sum="A kitten sat high in a tree. {H} and {Ff} used a {col} {obj} to bring it down.",
        ask=[("What was in the tree?", "A small kitten was in the tree."), ("What did they use?", "They used a {col} {obj}.")]),
    "magic": dict(topics=["a magic {obj}", "magic"], uses="obj", feel="surprised", things=["make the rain stop", "make flowers grow", "turn stones into bread", "make people laugh", "talk to the birds", "light up the night"], beats=[
        "One day, {H} found {acol} {obj} {spot}. It was a magic {obj}! It could {thing}. \"I will be famous,\" said {H}.",
        "All day long, {H} used the {obj}. But {he} forgot {his} friends. {Ff} stood at the door. \"You do not play with me anymore,\" said {F}.",
        "{H} felt bad. {He} put the {obj} down. \"You are better than magic,\" {he} said. Then {H} and {F} used the {obj} together, to help everyone in the {place}."],
        moral="a friend is better than magic", sum="{H} found a magic {obj} that could {thing}. {He} forgot {Ff}, but then they used it together.",
        ask=[("What could the {obj} do?", "The {obj} could {thing}."), ("What did {H} find?", "{H} found {acol} {obj}.")]),
    "mend": dict(topics=["a broken {obj}", "fixing things"], uses="obj", feel="upset", objs="kite drum boat lamp box flute wagon doll clock umbrella cup", beats=[
        "{H} had {acol} {obj} from {his} grandmother. [It was old, but {he} loved it.|{He} took it everywhere.] One {weather} day, the {obj} broke.",
        "\"I can buy you a new one,\" said {his} mother. But {H} did not want a new one. {He} took the {obj} to {Ff}.",
        "\"I can fix it,\" said {F}. {FHe} used [some glue|a needle|a small hammer] and a little [paint|string]. It took all day. At last, the {col} {obj} was [as good as new|even better than before].",
        "?\"How can I thank you?\" asked {H}. \"You can help me next time,\" said {F}."],
        moral="old things can be made new", sum="The {col} {obj} of {H} broke. {Ff} fixed it, and it was as good as new.",
        ask=[("What broke?", "The {col} {obj} broke."), ("Who fixed it?", "{F} fixed it.")]),
    "trip": dict(topics=["a trip to the sea", "a long trip", "a train ride"], uses="food", feel="excited", things=["train", "bus", "boat", "ship", "wagon"], beats=[
        "One {weather} day, {H} and {Ff} went on a trip. They took the {thing} and a bag with {foods}. \"I want to see the sea,\" said {H}.",
        "The {thing} went [on and on|past the farms|along the river]. But then it stopped. \"We can not go on,\" said the driver. {H} was sad.",
        "\"Then we will walk,\" said {F}. They walked and sang and ate the {foods}. In the evening, they stood on a hill. There was the sea, big and blue!"],
        moral="the way can be as nice as the end", sum="{H} and {Ff} took the {thing} to the sea. It stopped, so they walked and sang until they saw the sea.",
        ask=[("How did they travel?", "They took the {thing}."), ("What did they eat?", "They ate the {foods}.")]),
    "star": dict(topics=["the moon", "the moon and the stars", "bedtime"], uses="", feel="sleepy", things=["moon", "little star", "bright star"], beats=[
        "One night, {H} looked out of the window. \"The {thing} looks lonely,\" said {H}. {He} asked {Ff} what they could do.",
        "\"We can sing for it,\" said {F}. So they climbed the hill and sang a soft song to the {thing}. [The wind was quiet.|The owls listened.]",
        "The {thing} [began to shine|smiled down on them], brighter than before. \"Thank you,\" it seemed to say. \"Good night, {thing},\" said {H}."],
        moral="a song can make a friend", sum="{H} thought that the {thing} was lonely. {He} and {Ff} sang a soft song, and it began to shine.",
        ask=[("Who was lonely?", "The {thing} was lonely."), ("What did they sing?", "They sang a soft song.")]),
}
PLOT_NAMES = list(PLOTS)
